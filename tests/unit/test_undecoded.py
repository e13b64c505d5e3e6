"""Bytes of names and words that Python couldn't decode: taken as UTF-8, or told without loss."""

import pytest

from argus_cli.undecoded import decoded, escaped, replaced, unescaped

NAMES = [
    b"cat.jpg", "café 世界 🐕".encode(), b"caf\xe9", b"\xff\xfe", b"\xc3\xa9\xff\xc3",
    b"\xed\xa0\x80", rb"a\udcff", rb"\\udcff", b"\\\xff", b"\\\\\xff\\",
    rb"\u00e9\n", rb"\\", rb"\uDCFF", rb"udcff",
]  # fmt: skip


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_the_same_in_every_locale(name: bytes, encoding: str) -> None:
    text = name.decode(encoding, "surrogateescape")
    assert decoded(text) == name.decode("utf-8", "surrogateescape")
    assert replaced(text).encode()


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_escaped_names_are_unicode_and_come_back(encoding: str) -> None:
    texts = [name.decode(encoding, "surrogateescape") for name in NAMES]
    told = [escaped(text) for text in [*texts, "\ud800", "\udbff\udc00"]]
    assert len({text.encode() for text in told}) == len(told)
    assert [unescaped(text) for text in told[: len(NAMES)]] == [decoded(text) for text in texts]
    assert [unescaped(text) for text in told[len(NAMES) :]] == ["\ud800", "\udbff\udc00"]


def test_ordinary_names_stay_as_they_are_and_odd_ones_look_as_in_json() -> None:
    for text in ("C:\\udc\\photo.jpg", "a\\\\b", "\\u00e9", "café"):
        assert escaped(text) == text
    assert escaped("caf\udce9.jpg") == "caf\\udce9.jpg"
    assert replaced("caf\udce9 \udcc3\udca9") == "caf\ufffd é"


@pytest.mark.timeout(10)
def test_many_backslashes_take_no_time() -> None:
    text = "\\" * 200_000
    assert unescaped(escaped(text)) == text
