"""Output that is appended record by record, so that a run can end at any point and be gone on with.

The file itself is all there is: starting again with it reads what is done. A record stays until
the one that replaces it is written; where a path has several, the last counts, and ``close``
removes the others.
"""

import errno
import logging
import os
from collections.abc import Collection, Iterable, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

try:
    import fcntl
except ImportError:  # Windows: two runs on one output are the user's to avoid
    fcntl = None  # type: ignore[assignment]

from argus_cli.errors import ArgusError, UsageError
from argus_cli.output.lines import Entry, JsonLines, MadeBy, Result, lines_told
from argus_cli.output.pending import Input, Pending, SourceT, pending
from argus_cli.schema import VideoCaption

_log = logging.getLogger(__name__)
_BLOCK = 1 << 20  # bytes


class _Known(NamedTuple):
    entry: Entry
    start: int
    end: int


def open_journal(path: Path, lines: JsonLines, *, overwrite: bool = False) -> "Journal | None":
    """The journal in a file, locked until it is closed or the process ends.

    None for a pipe or a device, which keep nothing to go on from. A torn last row is cut off.
    With ``overwrite`` the file, whatever it holds, is replaced as the first record is written.
    Raises UsageError when the file isn't ours, can't be written, or another run writes to it.
    """
    target = path.resolve()  # a link stays one
    special = path.parts[:3] in (("/", "dev", "fd"), ("/", "dev", "stdout"), ("/", "dev", "stderr"))
    if (
        special
        or path.parts[:2] == ("/", "proc")
        or os.path.exists(target)
        and not os.path.isfile(target)
    ):
        if os.path.isdir(target):
            raise UsageError(f"--output {path}: is a folder")
        return None
    return Journal(target, lines, overwrite=overwrite)


class Journal:
    """One output file and what is in it. Opened by ``open_journal``."""

    def __init__(self, path: Path, lines: JsonLines, *, overwrite: bool):
        self._path, self._lines, self._overwrite = path, lines, overwrite
        self._known: dict[str, _Known] = {}
        self._stale: list[tuple[int, int]] = []
        self._clear_to = inf
        self._size = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = _open_locked(path)
            try:
                if not overwrite:
                    self._index()
            except BaseException:
                os.close(self._fd)
                raise
        except OSError as error:
            raise UsageError(f"--output {path}: {error.strerror or error}") from None

    def pending(
        self,
        sources: Sequence[SourceT],
        made_by: Sequence[str | None],
        *,
        retry_failed: bool = False,
        lacking: Collection[SourceT] = (),
    ) -> Pending[SourceT]:
        """What is still to be done, by the records that are here: see output.pending."""
        return pending(
            sources, self._entry, made_by,
            retry_failed=retry_failed, lacking=lacking, by_path=self._lines.by_path,
        )  # fmt: skip

    def piece(self, text: str) -> None:
        """Nothing: only whole records are written."""

    def write(self, result: Result) -> None:
        """Append one record. Raises ArgusError, the file whole, when the disk won't take it."""
        line = self._lines.line(result)
        if line is None:
            return
        fresh = self._overwrite or not self._size
        data = ((self._lines.header if fresh else "") + line).encode("utf-8", "surrogateescape")
        try:
            if self._overwrite:
                self._replace([data])
                self._overwrite = False
            else:
                self._append(data)
        except OSError as error:
            raise ArgusError(
                f"--output {self._path}: {error.strerror}; the {len(self._known)} records before "
                "are safe, and the same command goes on from there"
            ) from None
        start = self._size + len(data) - len(line.encode("utf-8", "surrogateescape"))
        self._size += len(data)
        self._remember(Entry(self._lines.key(result.path), _bytes_of(result)), start)

    def close(self, whole: bool = True) -> None:
        """Remove the records that others have replaced, and let go of the file."""
        self._stale = [span for span in self._stale if span[0] < self._clear_to]
        try:
            if self._stale:
                self._replace(self._kept())
        except OSError as error:
            _log.warning(
                "%s: %s; it still holds %d records that later ones replace",
                self._path, error.strerror, len(self._stale),
            )  # fmt: skip
        finally:
            gone = not _is_at(self._fd, self._path)
            os.close(self._fd)
        if gone:
            raise ArgusError(f"--output {self._path}: was removed or replaced during the run")

    def _entry(self, source: Input) -> Entry | None:
        known = self._known.get(self._lines.key(source.name))
        return None if known is None or source.bytes is None else known.entry

    def _index(self) -> None:
        """Learn what is in the file, and cut a torn last row off it."""
        broken: dict[int, int] = {}  # lines, and where they start
        number, torn, row = 1, False, b""
        makers: dict[MadeBy | None, MadeBy | None] = {}
        with self._path.open("rb") as file:
            for row in self._lines.rows(file):
                text, start = row.decode("utf-8", "surrogateescape"), self._size
                self._size += len(row)
                torn = False
                try:
                    entry = self._lines.read(text) if text.strip() else None
                except ValueError:
                    torn = self._lines.torn(text, first=start == 0)
                    if start == 0 and not torn:
                        raise UsageError(
                            f"--output {self._path}: is there already and doesn't begin as argus "
                            "would write it; name another file, or --overwrite replaces it"
                        ) from None
                    broken[number] = start
                else:
                    if entry is not None:  # few makers, many records: hold each once
                        maker = makers.setdefault(entry.made_by, entry.made_by)
                        self._remember(entry._replace(made_by=maker), start)
                number += row.count(b"\n")
        if torn:
            number, self._size = broken.popitem()
            os.ftruncate(self._fd, self._size)
            _log.warning("%s: line %d was cut off half-way; dropped", self._path, number)
        elif row and not row.endswith(b"\n"):
            self._append(b"\n")
            self._size += 1
        if broken:
            told = lines_told(list(broken))
            _log.warning("%s: no records, kept as they are: %s", self._path, told)
            if not self._lines.by_line:  # with other neighbours they would read as something else
                self._clear_to = min(broken.values())

    def _remember(self, entry: Entry, start: int) -> None:
        # What has no size is no file: another picture by the same name, such as <stdin>.
        old = self._known.get(entry.path)
        if old and (self._lines.by_path or old.entry.bytes is not None):
            self._stale.append((old.start, old.end))
        self._known[entry.path] = _Known(entry, start, self._size)

    def _append(self, data: bytes) -> None:
        try:
            _write_all(self._fd, data)
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise

    @property
    def _partial(self) -> Path:
        """What takes the file's place; names that are long and alike don't share it."""
        name = self._path.name
        return self._path.with_name(f".{name[:40]}.{crc32(os.fsencode(name)):08x}.new")

    def _kept(self) -> Iterable[bytes]:
        """The file without its stale records."""
        with self._path.open("rb") as file:
            for start, end in [*sorted(self._stale), (self._size, self._size)]:
                while block := file.read(min(_BLOCK, start - file.tell())):
                    yield block
                file.seek(end)

    def _replace(self, blocks: Iterable[bytes]) -> None:
        """Put another file in this one's place, locked before it can be seen."""
        partial = self._partial
        partial.unlink(missing_ok=True)  # of a run that was killed just here
        fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        try:
            _lock(fd)
            for block in blocks:
                _write_all(fd, block)
            os.chmod(partial, os.fstat(self._fd).st_mode & 0o777)
            os.replace(partial, self._path)
        except BaseException:
            os.close(fd)
            partial.unlink(missing_ok=True)
            raise
        os.close(self._fd)
        self._fd = fd


def _open_locked(path: Path) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            _lock(fd)
            if _is_at(fd, path):
                return fd
        except BlockingIOError:
            os.close(fd)
            raise UsageError(f"--output {path}: another argus is writing to it") from None
        os.close(fd)  # the other run replaced the file in between


def _is_at(fd: int, path: Path) -> bool:
    """Whether it is this file that still has the name."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False


def _lock(fd: int) -> None:
    """Hold the file against other runs; the system lets go of it however the process ends."""
    if fcntl is None:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):  # some network disks
            raise


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _bytes_of(result: Result) -> int | None:
    return None if isinstance(result, VideoCaption) else result.bytes
