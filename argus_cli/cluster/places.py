"""Inputs and folders wherever pyarrow's filesystems reach: paths, s3://, gs://, rows of Parquet.

What is on this machine's disk is found as media.sources finds it. Knows nothing of clusters.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, cast

from argus_cli.errors import UsageError
from argus_cli.media.sources import JUNK, Kind, resolve

_URI = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_CONTENT, _NAME = "bytes", "path"  # the columns of a Parquet file that are read


def is_uri(where: str) -> bool:
    """Whether it is a URI rather than a path on this machine's disk."""
    return bool(_URI.match(where))


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
            path = f"{folder}/.{name}.{os.getpid()}"
            self.filesystem.create_dir(folder, recursive=True)
        with self.filesystem.open_output_stream(path) as file:
            file.write(data)
        if not is_object:
            self.filesystem.move(path, self.path)

    def files(self, kind: Kind, recursive: bool) -> Iterator[Item]:
        """It, or what is in it, without hidden files. Raises UsageError."""
        (info,) = self.filesystem.get_file_info([self.path])
        if info.is_file:
            return iter([self._item(info, "")])
        found = []
        for info in self._files(recursive):
            below = info.path[len(self.path) + 1 :]
            hidden = any(p.startswith(".") or p.lower() in JUNK for p in below.split("/"))
            if kind.has(below) and not hidden:
                found.append(self._item(info, below))
        return iter(sorted(found, key=lambda item: item.at))

    def _files(self, recursive: bool) -> list[Any]:
        from pyarrow.fs import FileSelector

        selector = FileSelector(self.path, recursive=recursive, allow_not_found=True)
        try:
            return [info for info in self.filesystem.get_file_info(selector) if info.is_file]
        except OSError as error:
            raise UsageError(f"{self.uri}: {os_reason(error)}") from None

    def _item(self, info: Any, below: str) -> Item:
        name = f"{self.uri.rstrip('/')}/{below}" if below else self.uri
        return Item(name, name, None, info.size, info.mtime_ns, below.rpartition("/")[0])


def find_items(
    inputs: Sequence[str], lists: Sequence[str], kind: Kind, recursive: bool
) -> list[Item]:
    """What the words of a command line name, in their order, each once. Raises UsageError."""
    found: dict[str, Item] = {}
    words = [*inputs, *(line for listing in lists for line in _listed(listing))]
    for word in words:
        items = list(_expand(word, kind, recursive))
        if not items:
            raise UsageError(f"{word}: no {kind.name} in it")
        for item in items:
            found.setdefault(item.name, item)
    return list(found.values())


def _expand(word: str, kind: Kind, recursive: bool) -> Iterator[Item]:
    if word.lower().endswith(".parquet"):
        return _rows(Place.at(word))
    if is_uri(word):
        return Place.at(word).files(kind, recursive)
    sources = resolve([word], kind=kind, recursive=recursive)
    return (
        Item(s.name, os.path.abspath(s.name), None, s.bytes, s.mtime_ns, s.folder) for s in sources
    )


def _listed(listing: str) -> Iterator[str]:
    """The lines of a list, wherever it is. Raises UsageError."""
    place = Place.at(listing)
    try:
        lines = place.read().removeprefix(b"\xef\xbb\xbf").splitlines()
    except OSError as error:
        raise UsageError(f"--from {listing}: {os_reason(error)}") from None
    return map(os.fsdecode, filter(None, lines))


def _rows(place: Place) -> Iterator[Item]:
    """The rows of a Parquet file: each with its bytes, or the path or URI of a file."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with place.open() as file:
            table = ParquetFile(file)
            columns = set(table.schema_arrow.names)
            if not columns & {_CONTENT, _NAME}:
                raise UsageError(f"{place}: has no column {_CONTENT} or {_NAME}")
            names = [None] * table.metadata.num_rows
            if _NAME in columns:
                names = table.read([_NAME])[_NAME].to_pylist()
    except (OSError, ArrowException) as error:
        raise UsageError(f"{place}: {os_reason(error)}") from None
    for row, name in enumerate(names):
        name = name or f"{place}#{row}"
        if _CONTENT in columns:
            yield Item(name, place.uri, row)
        else:
            yield Item(name, name if is_uri(name) else os.path.abspath(name))


def cells(at: str, rows: Sequence[int]) -> dict[int, Content]:
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


def os_reason(error: Exception) -> str:
    """Why, in one line."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(reason).split())
