"""Inputs and folders wherever pyarrow's filesystems reach: paths, s3://, gs://, rows of Parquet.

What is on this machine's disk is found as media.sources finds it. Knows nothing of clusters.
"""

import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import unquote
from uuid import uuid4

from argus_cli.errors import UsageError
from argus_cli.media.sources import JUNK, Kind, resolve

logger = logging.getLogger(__name__)

_URI = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_FILE = re.compile(r"file:(//(localhost)?(?=/)|(?=/(?!/)))", re.IGNORECASE)
_CONTENT, _NAME = "bytes", "path"  # the columns of a Parquet file that are read
_TABLES = Kind("Parquet", (".parquet",))


def is_uri(where: str) -> bool:
    """Whether it is a URI rather than a path on this machine's disk."""
    return bool(_URI.match(where))


def plain(where: str) -> str:
    """A file:// URI's path, with which it is a path like any other; else what was given."""
    scheme = _FILE.match(where)
    return unquote(where[scheme.end() :], errors="surrogateescape") if scheme else where


@lru_cache
def _filesystem(host: str) -> tuple[Any, str]:
    """A filesystem, and the path of its root: a bucket's name, where there are buckets."""
    from pyarrow.fs import FileSystem

    # One request for a small object, where otherwise it were three.
    query = "?allow_delayed_open=true" if host.lower().startswith("s3://") else ""
    found: tuple[Any, str] = FileSystem.from_uri(host + query)
    return found


Content = bytes


@dataclass(frozen=True)
class Item:
    """One input of a cluster's run: what records call it, and where any machine finds it."""

    name: str
    at: str  # a path or URI
    row: int | None = None  # where that is a Parquet file whose rows hold the bytes
    bytes: int | None = None
    mtime_ns: int | None = None
    folder: str = ""  # as Source has it
    content: Content | None = None  # where there is no need to find it


@dataclass(frozen=True)
class Place:
    """A path on one of pyarrow's filesystems."""

    filesystem: Any
    path: str
    uri: str  # as the user would write it

    @classmethod
    def at(cls, where: str) -> "Place":
        """The place of a path or URI. Raises UsageError for one that no filesystem knows."""
        from pyarrow import ArrowException
        from pyarrow.fs import LocalFileSystem

        where = plain(where)
        if not is_uri(where):
            return cls(LocalFileSystem(), os.path.abspath(where), where)
        # Taken apart by hand: in the name of an object # and ? are letters like any other.
        scheme, _, rest = where.partition("://")
        host, _, below = rest.partition("/")
        try:
            filesystem, root = _filesystem(f"{scheme}://{host}")
        except (ArrowException, ValueError, OSError) as error:
            raise UsageError(f"{where}: {os_reason(error)}") from None
        return cls(filesystem, f"{root.rstrip('/')}/{below}".rstrip("/"), where.rstrip("/"))

    def __str__(self) -> str:
        return self.uri

    def child(self, name: str) -> "Place":
        """The file of this name in it."""
        return Place(self.filesystem, f"{self.path}/{name}", f"{self.uri.rstrip('/')}/{name}")

    def open(self) -> BinaryIO:
        """To be read. Raises OSError."""
        return cast(BinaryIO, self.filesystem.open_input_file(self.path))

    def read(self) -> bytes:
        """All that is in it. Raises OSError."""
        with self.open() as file:
            return file.read()

    def delete(self) -> None:
        self.filesystem.delete_file(self.path)

    def names(self) -> list[str]:
        """The files in it; none where it doesn't exist. Raises UsageError."""
        return [info.base_name for info in self._files(recursive=False)]

    def write_whole(self, data: bytes) -> None:
        """Make a file that is there whole or not at all. Raises OSError."""
        # An object appears when its upload is complete; a file is given its name by then.
        is_object = self.filesystem.type_name in ("s3", "gcs", "abfs")
        path = self.path
        if not is_object:
            folder, _, name = self.path.rpartition("/")
            path = f"{folder}/.{name}.{uuid4().hex}"
            self.filesystem.create_dir(folder, recursive=True)
        with self.filesystem.open_output_stream(path) as file:
            file.write(data)
        if not is_object:
            self.filesystem.move(path, self.path)

    def files(self, kind: Kind, recursive: bool) -> list[Item]:
        """It, or what is in it, without hidden files. Raises UsageError where there is nothing."""
        from pyarrow.fs import FileType

        (info,) = self._infos([self.path])
        if info.type == FileType.NotFound:
            raise UsageError(f"{self.uri}: no such file, and no {kind.name} in it")
        if info.is_file:
            return [self._item(info, "")]
        found = []
        for info in self._files(recursive):
            below = info.path[len(self.path) + 1 :]
            hidden = any(p.startswith(".") or p.lower() in JUNK for p in below.split("/"))
            if kind.has(below) and not hidden:
                found.append(self._item(info, below))
        return sorted(found, key=lambda item: item.at)

    def _files(self, recursive: bool) -> list[Any]:
        from pyarrow.fs import FileSelector

        selector = FileSelector(self.path, recursive=recursive, allow_not_found=True)
        return [info for info in self._infos(selector) if info.is_file]

    def _infos(self, wanted: Any) -> list[Any]:
        from pyarrow import ArrowException

        try:
            return cast(list[Any], self.filesystem.get_file_info(wanted))
        except (OSError, ArrowException) as error:
            raise UsageError(f"{self.uri}: {os_reason(error)}") from None

    def _item(self, info: Any, below: str) -> Item:
        name = f"{self.uri.rstrip('/')}/{below}" if below else self.uri
        return Item(name, name, None, info.size, info.mtime_ns, below.rpartition("/")[0])


def find_items(
    inputs: Sequence[str], lists: Sequence[str], kind: Kind, recursive: bool
) -> list[Item]:
    """What the words of a command line name, each once: what is on disk, then URIs and Parquet.

    Raises UsageError for what doesn't exist, and where nothing is found at all.
    """
    words = list(map(plain, inputs))
    barren = []
    for listing in lists:
        lines = list(_listed(listing))
        words += lines
        if not lines:
            barren.append(f"--from {listing}: no {kind.name} in it")
    far = dict.fromkeys(w for w in words if is_uri(w) or _is_table(w, kind, recursive))
    items = list(_local([word for word in words if word not in far], kind, recursive))
    for word in far:
        some = list(_far(word, kind, recursive))
        items += some
        if not some:
            barren.append(f"{word}: no {kind.name} in it")
    if not items:
        raise UsageError("; ".join(barren))
    for message in barren:
        logger.warning(message)
    return _distinct(items)


def _distinct(items: Iterable[Item]) -> list[Item]:
    """Each place once, each name once: by it records are told apart."""
    found: dict[tuple[str, int | None], Item] = {}
    taken: set[str] = set()
    for item in items:
        key = item.at, item.row
        if key not in found:
            if item.name in taken:
                item = replace(item, name=_numbered(*key))
            found[key] = item
            taken.add(item.name)
    return list(found.values())


def _local(words: Sequence[str], kind: Kind, recursive: bool) -> Iterator[Item]:
    for s in resolve(words, kind=kind, recursive=recursive) if words else ():
        at = os.path.abspath(s.name)
        yield Item(utf8(s.name), at, None, s.bytes, s.mtime_ns, s.folder)


def _far(word: str, kind: Kind, recursive: bool) -> Iterator[Item]:
    """What a URI or a table names; a folder of tables is one where it holds nothing else."""
    place = Place.at(word)
    files = [] if _TABLES.has(word) else place.files(kind, recursive)
    tables = [] if files else place.files(_TABLES, recursive)
    return chain(files, *(_rows(Place.at(table.at)) for table in tables))


def _is_table(word: str, kind: Kind, recursive: bool) -> bool:
    """Whether rows are meant: a Parquet file, or a folder that holds such and no pictures."""
    if _TABLES.has(word):
        return True
    if not os.path.isdir(word) or not any(Path(word).glob("*.parquet")):
        return False
    return not Place.at(word).files(kind, recursive)


def _listed(listing: str) -> Iterator[str]:
    """What stands in a list, wherever that is: as media.sources reads it. Raises UsageError."""
    try:
        data = sys.stdin.buffer.read() if listing == "-" else Place.at(listing).read()
    except OSError as error:
        raise UsageError(f"--from {listing}: {os_reason(error)}") from None
    data = data.removeprefix(b"\xef\xbb\xbf")
    lines = data.split(b"\0") if b"\0" in data else data.replace(b"\r\n", b"\n").split(b"\n")
    for line in map(plain, map(os.fsdecode, filter(None, lines))):
        if not is_uri(line) and not os.path.exists(line):  # no glob either
            raise UsageError(f"--from {listing}: {line}: no such file")
        yield "./-" if line == "-" else line


def _rows(place: Place) -> Iterator[Item]:
    """The rows of a Parquet file: each with its bytes, or the path or URI of a file."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with place.open() as file:
            table = ParquetFile(file)
            columns = set(table.schema_arrow.names)
            if not columns & {_CONTENT, _NAME}:
                raise UsageError(f"{place}: has no column {_CONTENT} or {_NAME}")
            names = [None] * table.metadata.num_rows
            if _NAME in columns:
                names = table.read([_NAME])[_NAME].cast(pa.string()).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"{place}: {os_reason(error)}") from None
    at = place.uri if is_uri(place.uri) else place.path
    for row, name in enumerate(names):
        name = name or _numbered(place.uri, row)
        if _CONTENT in columns:
            yield Item(name, at, row)
        else:
            where = plain(name)
            yield Item(name, where if is_uri(where) else os.path.abspath(where))


def _numbered(table: str, row: int | None) -> str:
    return table if row is None else f"{table}#{row}"


def bytes_in_rows(at: str, rows: Sequence[int]) -> dict[int, Content]:
    """The bytes in these rows of a Parquet file; only their row groups are read. Raises OSError."""
    from pyarrow.parquet import ParquetFile

    found: dict[int, Content] = {}
    start = 0
    with Place.at(at).open() as file:
        table = ParquetFile(file)
        for group in range(table.num_row_groups):
            end = start + table.metadata.row_group(group).num_rows
            if inside := [row for row in rows if start <= row < end]:
                column = table.read_row_group(group, columns=[_CONTENT])[_CONTENT]
                found |= {row: column[row - start].as_py() or b"" for row in inside}
            start = end
    return found


def utf8(text: str) -> str:
    """The text with bytes that are no UTF-8, as old file names have, spelled out: \\xe9."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def os_reason(error: Exception) -> str:
    """Why, in one line."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(reason).split())
