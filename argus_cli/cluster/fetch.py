"""Items -> sources that a captioner reads, while object storage is asked for those to come."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, cast

from argus_cli.cluster.places import Item, Place, bytes_in_rows, is_uri, os_reason, plain
from argus_cli.errors import ImageError, InputError, UsageError, VideoError
from argus_cli.media.images import MAX_STREAM_BYTES
from argus_cli.media.sources import Source

FETCHERS = 8  # threads that wait for object storage


class _Fetched:
    """A stream that gives all of its bytes at once, and again to whoever asks again."""

    any_thread = True  # may read it ahead of its turn: it ends by itself

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
        self._file = None  # whoever asks is about to read it from its beginning
        return False


class _Ahead:
    """Objects in storage, of which the next few are fetched before somebody asks for them."""

    def __init__(self, pool: ThreadPoolExecutor, places: Iterable[str]):
        self._pool, self._lock = pool, Lock()
        self._later = dict.fromkeys(places)
        self._coming: dict[str, Future[bytes]] = {}
        self._fetch()

    def read(self, at: str) -> bytes:
        """All of it, which isn't kept."""
        with self._lock:
            self._later.pop(at, None)
            future = self._coming.pop(at, None) or self._pool.submit(_read, at)
            self._fetch()
        return future.result()

    def _fetch(self) -> None:
        for at in list(self._later)[: FETCHERS - len(self._coming)]:
            del self._later[at]
            self._coming[at] = self._pool.submit(_read, at)


@contextmanager
def fetched(items: Sequence[Item], *, films: bool) -> Iterator[list[Source]]:
    """The sources of items; within, the pictures among them that aren't on disk are brought."""
    with ThreadPoolExecutor(FETCHERS) as pool:
        ahead = _Ahead(pool, [i.at for i in items if _is_object(i) and not films])
        tables = {item.at for item in items if item.row is not None}
        rows = {at: [item.row for item in items if item.at == at] for at in tables}
        found = {at: pool.submit(bytes_in_rows, at, cast(list[int], rows[at])) for at in tables}

        def file(item: Item) -> Any:
            if item.content is not None:
                return _Fetched(item.name, partial(bytes, item.content))
            if item.row is not None:
                return _Fetched(item.name, partial(_cell, found[item.at], item.row))
            if not _is_object(item):
                return Path(item.at)
            return _Streamed(item) if films else _Fetched(item.name, partial(ahead.read, item.at))

        try:
            yield [Source(item.name, file(item), *_stamp(item)) for item in items]
        finally:
            pool.shutdown(cancel_futures=True)


def _is_object(item: Item) -> bool:
    return item.content is None and item.row is None and is_uri(item.at)


def _read(at: str) -> bytes:
    """One byte more than may be, where there are so many: enough to refuse it."""
    with Place.at(at).open() as file:
        return file.read(MAX_STREAM_BYTES + 1)


def _cell(found: Future[dict[int, bytes]], row: int) -> bytes:
    rows = found.result()
    if row not in rows:
        raise OSError(f"there is no row {row} any more")
    return rows[row]


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
    return Item(path or "<bytes>", plain(path or ""), content=known)


@contextmanager
def _border(name: str, kind: type[InputError]) -> Iterator[None]:
    try:
        yield
    except UsageError as error:  # no URI that pyarrow knows
        raise kind(str(error)) from error
    except (OSError, ValueError) as error:  # of pyarrow, ValueErrors too
        raise kind(f"{name}: {os_reason(error)}") from error
