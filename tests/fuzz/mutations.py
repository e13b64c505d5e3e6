"""Mutations that leave a text's syntax whole, so that they get past the parser."""

import re
from random import Random

TOKEN = re.compile(rb'"(?:[^"\\\n]|\\.)*"|-?\d[\d.eE+-]*|true|false|null')
ODD = (
    b"null", b"true", b"0", b"-1", b"2", b"0.5", b"1e999", b"NaN", b"-Infinity", b"9" * 19,
    b"9" * 5000, b'""', b'"x"', b'"\\ud800"', b'"\\u0000"', b'"../x"', b"[]", b"[[]]", b"[1, 2]",
    b"{}", b'{"a": null}', b"[" * 3000 + b"]" * 3000,
)  # fmt: skip


def swap_token(data: bytes, random: Random) -> bytes:
    """JSON, TOML and the like with one string, number or key put in another's place, or an odd one.

    Of a safetensors header the length, which comes first, is kept right.
    """
    tokens = list(TOKEN.finditer(data, 8 if data[8:9] == b"{" else 0))
    if not tokens:
        return data
    token = random.choice(tokens)
    new = random.choice((*ODD, random.choice(tokens)[0]))
    data = data[: token.start()] + new + data[token.end() :]
    return (len(data) - 8).to_bytes(8, "little") + data[8:] if data[8:9] == b"{" else data
