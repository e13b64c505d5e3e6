"""Captions and failures as records: plain text, JSON, JSON lines. Knows nothing of models.

A writer is opened on a text stream, takes one result after the other and is closed once.
"""

import json
import unicodedata
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol, TextIO

from argus_cli.schema import Caption, Failure, VideoCaption

Result = Caption | VideoCaption | Failure

SCHEMA = 1


def to_record(result: Result) -> dict[str, Any]:
    """The JSON object for one input."""
    if isinstance(result, Failure):
        error = {"type": result.type, "message": result.message}
        return {"schema": SCHEMA, "path": result.path, "error": error}
    record: dict[str, Any] = _rounded({"schema": SCHEMA, **asdict(result)})
    return record


def _rounded(value: Any) -> Any:
    """Floats to a tenth of a millisecond (or of a thousandth), since more is noise."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def printable(text: str) -> str:
    """Text that can't steer a terminal: control and bidirectional characters become spaces."""
    return "".join(" " if unicodedata.category(c) in ("Cc", "Cf") else c for c in text)


class Writer(Protocol):
    """One format."""

    def piece(self, text: str) -> None: ...

    def write(self, result: Result) -> None: ...

    def close(self) -> None: ...


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
                caption = f"{printable(result.path)}\t{' '.join(caption.split())}"
            self._stream.write(caption + "\n")
            self._stream.flush()

    def close(self) -> None:
        pass


class JsonlWriter:
    """One object a line, flushed as it comes."""

    def __init__(self, stream: TextIO, several: bool):
        self._stream = stream

    def piece(self, text: str) -> None:
        pass

    def write(self, result: Result) -> None:
        self._stream.write(_dump(to_record(result)) + "\n")
        self._stream.flush()

    def close(self) -> None:
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

    def close(self) -> None:
        if not self._records and not self._several:
            return
        document = self._records if self._several else self._records[0]
        self._stream.write(_dump(document, indent=2) + "\n")
        self._stream.flush()


WRITERS: dict[str, Callable[[TextIO, bool], Writer]] = {
    "text": TextWriter,
    "json": JsonWriter,
    "jsonl": JsonlWriter,
}


def _lines(text: str) -> str:
    """Printable text in which line breaks stay."""
    return "\n".join(printable(line) for line in text.split("\n"))


def _dump(value: object, indent: int | None = None) -> str:
    # A file name that is no UTF-8 arrives with lone surrogates, which no UTF-8 stream takes.
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
