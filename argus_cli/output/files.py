"""Where output goes: stdout, the end of a file, or a file that is there whole or not at all."""

import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import TextIO

from argus_cli.errors import ArgusError, UsageError

TAKES_NO_MORE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF, errno.EIO)


@contextmanager
def open_output(path: Path | None, *, append: bool) -> Iterator[TextIO]:
    """stdout, or a file: appended to as it is written, or else replaced as a whole at the end.

    Raises UsageError when the file can't be written, as far as that can be told beforehand,
    ArgusError when it can't in the end.
    """
    if path is None:
        yield sys.stdout
    elif append:
        with _named(path):
            file = path.open("a", encoding="utf-8", errors="surrogateescape")
        try:
            with file:
                yield file
        except OSError as error:
            if error.errno not in TAKES_NO_MORE:
                raise
            raise ArgusError(f"--output {path}: {error.strerror}") from None
    else:
        check_writable(path)
        document = StringIO()
        try:
            yield document
        finally:  # what there is, also when something ends the run early
            if document.tell():
                deliver(path, document.getvalue())


def check_ours(path: Path, mark: str) -> None:
    """Raise UsageError for a file, not blank, that doesn't have the ``mark`` early on.

    Without a mark nothing tells argus's files from others: all are refused.
    """
    with _named(path):
        if not path.is_file() or not path.stat().st_size:
            return
        with path.open("rb") as file:
            if mark and mark.encode() in file.read(_HEAD_BYTES):
                return
    why = " and doesn't begin as argus would write it" if mark else ""
    raise UsageError(
        f"--output {path}: is there already{why}; name another file, or --overwrite replaces it"
    )


_HEAD_BYTES = 200


def check_folder(path: Path, option: str) -> None:
    """Raise UsageError for a folder that no file could be written into."""
    with _named(path, option):
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(0, "is no folder")
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(0, "permission denied")


def check_writable(path: Path, option: str = "--output") -> None:
    """Raise UsageError for a file that couldn't be written, before work is spent on it."""
    with _named(path, option):
        if path.is_dir():
            raise IsADirectoryError(0, "is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise PermissionError(0, "permission denied")


def deliver(path: Path, text: str) -> None:
    """Write what a run has made, whole, or else into the folder for temporary files.

    Raises ArgusError that says where it is.
    """
    try:
        write_whole(path, text)
    except ArgusError as error:
        try:
            spare = Path(tempfile.mkdtemp(prefix="argus-"), f"captions{path.suffix}")
            write_whole(spare, text)
        except (ArgusError, OSError):
            raise ArgusError(f"{error}; what it was to hold is lost") from None
        raise ArgusError(f"{error}; what it was to hold is in {spare}") from None


def write_whole(path: Path, text: str, option: str = "--output") -> None:
    """Write a file so that it is there whole or not at all.

    Raises ArgusError that names the ``option`` which asked for it.
    """
    with _named(path, option, ArgusError):
        path = path.resolve()  # a link stays one
        if path.exists() and not path.is_file():  # a pipe or a device can't be replaced
            path.write_text(text, encoding="utf-8", errors="surrogateescape")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
        try:
            with open(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
            os.chmod(partial, path.stat().st_mode if path.exists() else 0o666 & ~_umask())
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(partial)
            raise


@contextmanager
def _named(
    path: Path, option: str = "--output", kind: type[ArgusError] = UsageError
) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise kind(f"{option} {path}: {error.strerror or error}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
