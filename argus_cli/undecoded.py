r"""Bytes that Python couldn't decode, in names of files and in words of the command line.

They come as lone surrogates (PEP 383); where the system's encoding isn't UTF-8, so do the bytes of
characters. Knows nothing of formats.
"""

import re

_BYTES = re.compile("[\udc80-\udcff]+")
_LONE = re.compile("[\ud800-\udfff]")
_TO_ESCAPE = re.compile(r"(?<!\\)(\\*)([\ud800-\udfff]|ud[89a-f][0-9a-f]{2})")
_ESCAPED = re.compile(r"(?<!\\)(\\+)(ud[89a-f][0-9a-f]{2})")


def decoded(text: str) -> str:
    """The same, with what is UTF-8 among those bytes as characters; others stay surrogates."""
    return _BYTES.sub(lambda match: _raw(match).decode("utf-8", "surrogateescape"), text)


def replaced(text: str) -> str:
    """Text that any encoder takes: what isn't UTF-8 is U+FFFD."""
    return _LONE.sub("\ufffd", decoded(text))


def escaped(text: str) -> str:
    r"""Text that any encoder takes: what isn't UTF-8 is \udcff, as in JSON, for the byte ff.

    Backslashes are doubled before that, and before what reads like it.
    """
    return _TO_ESCAPE.sub(_escape, decoded(text))


def unescaped(text: str) -> str:
    """What ``escaped`` was made of."""
    return _ESCAPED.sub(_unescape, text)


def _raw(match: re.Match[str]) -> bytes:
    return match[0].encode("utf-8", "surrogateescape")


def _escape(match: re.Match[str]) -> str:
    slashes, rest = match[1] * 2, match[2]
    return f"{slashes}\\u{ord(rest):04x}" if len(rest) == 1 else slashes + rest


def _unescape(match: re.Match[str]) -> str:
    count, rest = len(match[1]), match[2]
    return "\\" * (count // 2) + (chr(int(rest[1:], 16)) if count % 2 else rest)
