"""Results as lines of a file, and back: JSON lines, other tools' JSON lines, CSV. Pure text.

Reading them back tells a run that is started again what is done already.
"""

import csv
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from io import BytesIO, StringIO
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from argus_cli.errors import UsageError
from argus_cli.schema import Caption, Failure, VideoCaption
from argus_cli.undecoded import decoded, escaped, unescaped

Result = Caption | VideoCaption | Failure

SCHEMA = 1
RECORD = f'"schema": {SCHEMA}'  # how each begins


def to_record(result: Result) -> dict[str, Any]:
    """The JSON object for one input."""
    if isinstance(result, Failure):
        error = {"type": result.type, "message": result.message}
        stamp = {"bytes": result.bytes, "mtime_ns": result.mtime_ns}
        return {"schema": SCHEMA, "path": result.path, "error": error, **stamp}
    record: dict[str, Any] = _rounded({"schema": SCHEMA, **asdict(result)})
    return record


def parse_record(text: str) -> dict[str, Any]:
    """The JSON object on one line, back from its text. Raises ValueError if it isn't one of ours.

    It holds exactly one of: a caption, an error, a film's segments.
    """
    record = _parse(text)
    ours = record.get("schema") == SCHEMA and isinstance(record.get("path"), str)
    kinds = {"caption": str, "error": dict, "segments": list}
    if not ours or [isinstance(record[key], kinds[key]) for key in kinds if key in record] != [
        True
    ]:
        raise ValueError("not a record of argus")
    return record


def _rounded(value: Any) -> Any:
    """Floats to a tenth of a millisecond (or of a thousandth), since more is noise."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


MADE_BY = ("model", "revision", "style", "prompt")  # what a caption is another without


MadeBy = tuple[str | None, ...]


class Entry(NamedTuple):
    """What a record says of its input, to tell whether it still holds."""

    path: str
    bytes: int | None = None
    mtime_ns: int | None = None
    made_by: MadeBy | None = None  # the values of MADE_BY; None for a failure


class JsonLines:
    """One object a line, in argus's own schema."""

    header = ""  # what a new file begins with
    by_path = False  # whether a record says no more of its input than its path
    by_line = True  # whether a record is one line, whatever stands before and after it
    _opening = f'{{"schema": {SCHEMA}, "path": '

    def key(self, name: str) -> str:
        """What records call the input of this name."""
        return name

    def line(self, result: Result) -> str | None:
        """A result's record, its line end included; None if the format has no place for it."""
        return dump(to_record(result)) + "\n"

    def rows(self, file: BinaryIO) -> Iterator[bytes]:
        """The file cut into records, line ends included."""
        return iter(file)

    def read(self, row: str) -> Entry | None:
        """What a row tells; None if it is none of a picture's. Raises ValueError if it's broken."""
        record = parse_record(row)
        if "caption" not in record and "error" not in record:
            return None
        made_by = None if "error" in record else tuple(str(record.get(key)) for key in MADE_BY)
        return Entry(record["path"], record.get("bytes"), record.get("mtime_ns"), made_by)

    def torn(self, row: str, *, first: bool) -> bool:
        """Whether a row that can't be read is one of ours, cut by whatever ended the run."""
        try:
            json.loads(row)
        except (ValueError, RecursionError):
            ours = row.startswith(self._opening) or self._opening.startswith(row)
            return ours or not (first or row.endswith("\n"))
        return False


class ImageFolder(JsonLines):
    """metadata.jsonl as Hugging Face ``datasets`` reads it beside the pictures.

    https://huggingface.co/docs/datasets/image_dataset#imagefolder
    """

    by_path = True
    _opening = '{"file_name": '

    def __init__(self, output: Path | None):
        if output is not None and output.name != "metadata.jsonl":
            raise UsageError(
                f"--output {output}: imagefolder is read from a file of the name metadata.jsonl, "
                f"e.g. {output.parent / 'metadata.jsonl'}"
            )
        self._folder = Path() if output is None else output.parent

    def key(self, name: str) -> str:
        """The path below the output's folder. Raises UsageError for a picture elsewhere."""
        path = Path(os.path.relpath(name, self._folder)).as_posix()
        if path.startswith("../"):
            raise UsageError(
                f"{name}: imagefolder needs pictures below the output's folder, {self._folder}"
            )
        return path

    def line(self, result: Result) -> str | None:
        if not isinstance(result, Caption):
            return None
        return dump({"file_name": self.key(result.path), "text": result.caption}) + "\n"

    def read(self, row: str) -> Entry | None:
        return _by_path(row, "file_name", "text")


class Kohya(JsonLines):
    """What sd-scripts trains from: absolute paths, captions, sizes in pixels."""

    by_path = True
    _opening = '{"image_path": '

    def key(self, name: str) -> str:
        return os.path.abspath(name)

    def line(self, result: Result) -> str | None:
        if not isinstance(result, Caption):
            return None
        size = [result.width, result.height]
        record = {"image_path": self.key(result.path), "caption": result.caption}
        return dump(record | {"image_size": size}) + "\n"

    def read(self, row: str) -> Entry | None:
        return _by_path(row, "image_path", "caption")


class CsvRows(JsonLines):
    """RFC 4180 with a header; text that a spreadsheet would run as a formula is guarded.

    Bytes of a file name that are no UTF-8 are escaped as in JSON.
    """

    _columns = (
        "path", "caption", "error", "width", "height", "tiles", "new_tokens", "finish_reason",
        "confidence", *MADE_BY, "seed", "seconds", "bytes", "mtime_ns",
    )  # fmt: skip
    header = ",".join(_columns) + "\r\n"
    by_line = False
    _longest = 1 << 20  # bytes that a row may have
    _value = r'(?:"(?:[^"]++|"")*+"|[^",\r\n]*)'
    _syntax = re.compile(rf"{_value}(?:,{_value}){{{len(_columns) - 1}}}\r?\n")

    def key(self, name: str) -> str:
        return decoded(name)

    def line(self, result: Result) -> str | None:
        record = to_record(result)
        if "error" in record:
            record["error"] = ": ".join(record["error"].values())
        else:
            record["seconds"] = round(sum(record["seconds"].values()), 4)
        row = StringIO()
        csv.writer(row).writerow(_cell(record.get(column)) for column in self._columns)
        return row.getvalue()

    def rows(self, file: BinaryIO) -> Iterator[bytes]:
        """Rows, several lines long where a quoted cell is; a stray quote costs its own line."""
        while row := self._row(file):
            if b"\n" in row[:-1] and not self._whole(row):
                end, line = file.tell(), row[: row.index(b"\n") + 1]
                if any(self._whole_at(file, at) for at in self._line_ends(row, end)):
                    row, end = line, end - len(row) + len(line)
                file.seek(end)
            yield row

    def _line_ends(self, row: bytes, end: int) -> Iterator[int]:
        """Where in the file other rows could begin; no row of ours has as many lines."""
        lengths = map(len, BytesIO(row).readlines()[:100])
        return accumulate(lengths, initial=end - len(row))

    def _whole_at(self, file: BinaryIO, at: int) -> bool:
        file.seek(at)
        return self._whole(self._row(file))

    def _row(self, file: BinaryIO) -> bytes:
        """One line, and those after it up to where its last quote is closed."""
        row = file.readline()
        quotes = row.count(b'"')
        while quotes % 2 and len(row) < self._longest and (more := file.readline()):
            row += more
            quotes += more.count(b'"')
        return row

    def read(self, row: str) -> Entry | None:
        if row == self.header:  # in the middle too, where files were concatenated
            return None
        if not self._syntax.fullmatch(row):  # csv would also take quotes in the middle of a cell
            raise ValueError("no whole row")
        try:
            cells = next(csv.reader([row], strict=True))
        except csv.Error as error:
            raise ValueError(str(error)) from None
        cell = dict(zip(self._columns, map(_text, cells), strict=True))
        size, mtime_ns = (int(cell[key]) if cell[key] else None for key in ("bytes", "mtime_ns"))
        made_by = tuple(cell[key] for key in MADE_BY)
        return Entry(cell["path"], size, mtime_ns, None if cell["error"] else made_by)

    def torn(self, row: str, *, first: bool) -> bool:
        return not first or self.header.startswith(row)

    def _whole(self, row: bytes) -> bool:
        try:
            return self.read(row.decode("utf-8", "surrogateescape")) is not None
        except ValueError:
            return False


LINES: dict[str, Callable[[Path | None], JsonLines]] = {
    "argus": lambda output: JsonLines(),
    "imagefolder": ImageFolder,
    "kohya": lambda output: Kohya(),
    "csv": lambda output: CsvRows(),
}


# What json leaves as it is although it steers a terminal (C1 controls, bidirectional marks), ends a
# line for some readers, or is the lone surrogate of a file name, which no UTF-8 stream takes.
_ESCAPED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def dump(value: object, indent: int | None = None) -> str:
    """JSON that any UTF-8 stream takes and any terminal shows, the same value when read back."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def lines_told(numbers: list[int]) -> str:
    """Which lines of a file, for a message: the first few."""
    shown = ", ".join(map(str, numbers[:10]))
    return f"line {shown}" + (f" and {len(numbers) - 10} more" if len(numbers) > 10 else "")


def _parse(text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError("not an object")
    return record


def _by_path(row: str, path: str, caption: str) -> Entry:
    record = _parse(row)
    if not isinstance(record.get(path), str) or not isinstance(record.get(caption), str):
        raise ValueError(f"no {path} and {caption}")
    return Entry(record[path])


# Spreadsheets take these for the beginning of a formula (OWASP, CSV injection; some the full-width
# forms too). Apostrophes before them are counted, so that a guarded cell reads back as what it was.
_FORMULA = re.compile(r"'*[=+\-@\uff1d\uff0b\uff0d\uff20\t\r\n]")


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = escaped(value)
    return f"'{text}" if _FORMULA.match(text) else text


def _text(cell: str) -> str:
    guarded = cell.startswith("'") and _FORMULA.match(cell)
    return unescaped(cell[1:] if guarded else cell)
