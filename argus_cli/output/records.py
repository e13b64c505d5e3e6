"""Writers of captions and failures: plain text, JSON, JSON lines, CSV. Knows nothing of models.

A writer is opened on a text stream, takes one result after the other and is closed once.
"""

import re
import unicodedata
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from argus_cli.output.lines import CsvRows, JsonLines, Result, dump, to_record
from argus_cli.schema import Caption
from argus_cli.undecoded import decoded, escaped

_NO_BYTES = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # surrogates of no byte of a file name


def printable(text: str) -> str:
    """One line of text that can't steer a terminal.

    Control, bidirectional and invisible characters and line separators become spaces. Bytes of a
    file name that are no UTF-8 stay, except those that are control characters in other encodings.
    """
    known = _NO_BYTES.sub("\ufffd", decoded(text))
    return "".join(" " if _steers(c) else c for c in known)


def _steers(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") or "\udc80" <= c <= "\udc9f"


class Writer(Protocol):
    """One format."""

    def piece(self, text: str) -> None: ...

    def write(self, result: Result) -> None: ...

    def close(self, whole: bool = True) -> None:
        """The end; not ``whole`` when something has ended the run early."""


class TextWriter:
    """The caption alone for one input, ``path<TAB>caption`` for several; failures are not text."""

    def __init__(self, stream: TextIO, several: bool):
        self._stream, self._several, self._begun = stream, several, False

    def piece(self, text: str) -> None:
        """Show a part of the one caption while it is being written."""
        self._stream.write(_lines(text if self._begun else text.lstrip()))
        self._stream.flush()
        self._begun = self._begun or bool(text.strip())

    def write(self, result: Result) -> None:
        if isinstance(result, Caption):
            caption = "" if self._begun else _lines(result.caption)
            if self._several:
                caption = f"{printable(escaped(result.path))}\t{' '.join(caption.split())}"
            self._stream.write(caption + "\n")
            self._stream.flush()

    def close(self, whole: bool = True) -> None:
        pass


class LineWriter:
    """One line a result, flushed as it comes."""

    def __init__(self, stream: TextIO, lines: JsonLines):
        self._stream, self._lines, self._header = stream, lines, lines.header

    def piece(self, text: str) -> None:
        pass

    def write(self, result: Result) -> None:
        if line := self._lines.line(result):
            text = self._header + line
            self._stream.write(_lines(text) if self._stream.isatty() else text)
            self._stream.flush()
            self._header = ""

    def close(self, whole: bool = True) -> None:
        pass


class JsonWriter:
    """One document at the end: an object for one input, an array for several."""

    def __init__(self, stream: TextIO, several: bool):
        self._stream, self._several = stream, several
        self._records: list[dict[str, Any]] = []

    def piece(self, text: str) -> None:
        pass

    def write(self, result: Result) -> None:
        self._records.append(to_record(result))

    def close(self, whole: bool = True) -> None:
        if not self._records and not (whole and self._several):
            return
        document = self._records if self._several else self._records[0]
        self._stream.write(dump(document, indent=2) + "\n")
        self._stream.flush()


WRITERS: dict[str, Callable[[TextIO, bool], Writer]] = {
    "text": TextWriter,
    "json": JsonWriter,
    "jsonl": lambda stream, several: LineWriter(stream, JsonLines()),
    "csv": lambda stream, several: LineWriter(stream, CsvRows()),
}


def _lines(text: str) -> str:
    """Printable text in which line breaks stay."""
    return "\n".join(printable(line) for line in text.split("\n"))
