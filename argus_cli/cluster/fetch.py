"""Items -> sources that a captioner reads, while object storage is asked for those to come."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from argus_cli.cluster.places import Item, Place, cells, is_uri, os_reason
from argus_cli.errors import ImageError, InputError, UsageError, VideoError
from argus_cli.media.sources import Source

FETCHERS = 8  # threads that wait for object storage


class _Fetched:
    """A stream that gives all of its bytes at once, and again to whoever asks again."""

    def __init__(self, name: str, content: Callable[[], bytes]):
        self.name, self._content = name, content

    def read(self, size: int = -1) -> bytes:
        with _border(self.name, ImageError):
            return self._content()


class _Streamed:
    """A film in object storage, too large for memory; it comes once, from its beginning on."""

    def __init__(self, item: Item):
        self.name, self._at, self._file = item.name, item.at, cast(BinaryIO | None, None)

    def read(self, size: int = -1) -> bytes:
        with _border(self.name, VideoError):
            self._file = self._file or Place.at(self._at).open()
            return self._file.read(size)

    def seekable(self) -> bool:
        return False


@contextmanager
def fetched(items: Sequence[Item], *, films: bool) -> Iterator[list[Source]]:
    """The sources of items; within, the pictures among them that aren't on disk are brought."""
    with ThreadPoolExecutor(FETCHERS) as pool:
        tables = {item.at for item in items if item.row is not None}
        rows = {at: [item.row for item in items if item.at == at] for at in tables}
        cell = {at: pool.submit(cells, at, cast(list[int], rows[at])) for at in tables}
        try:
            yield [Source(i.name, _file(i, pool, cell, films), *_stamp(i)) for i in items]
        finally:
            pool.shutdown(cancel_futures=True)


def _file(
    item: Item, pool: ThreadPoolExecutor, cell: dict[str, Future[dict[int, bytes]]], films: bool
) -> Path | BinaryIO:
    file: Any
    if item.content is not None:
        file = _Fetched(item.name, partial(bytes, item.content))
    elif item.row is not None:
        file = _Fetched(item.name, partial(_cell, cell[item.at], item.row))
    elif not is_uri(item.at):
        return Path(item.at)
    elif films:
        file = _Streamed(item)
    else:
        file = _Fetched(item.name, pool.submit(_read, item.at).result)
    return cast(BinaryIO, file)


def _read(at: str) -> bytes:
    return Place.at(at).read()


def _cell(cell: Future[dict[int, bytes]], row: int) -> bytes:
    return cell.result()[row]


def _stamp(item: Item) -> tuple[int | None, int | None]:
    """Size and time of last change, as they were found, or as they are now."""
    on_disk = item.content is None and item.row is None and not is_uri(item.at)
    if item.bytes is None and on_disk:
        with suppress(OSError, ValueError):
            info = os.stat(item.at)
            return info.st_size, info.st_mtime_ns
    return item.bytes, item.mtime_ns


def item_of(row: dict[str, Any]) -> Item:
    """What a row of a user's dataset holds: a ``path``, ``bytes``, or both."""
    path, content = row.get("path"), row.get("bytes")
    known = content if content is not None else None if path else b""
    return Item(path or "<bytes>", path or "", content=known)


@contextmanager
def _border(name: str, kind: type[InputError]) -> Iterator[None]:
    try:
        yield
    except UsageError as error:  # no URI that pyarrow knows
        raise kind(str(error)) from error
    except OSError as error:
        raise kind(f"{name}: {os_reason(error)}") from error
