"""Where output goes: stdout, the end of a file, or a file that is there whole or not at all."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import TextIO

from argus_cli.errors import UsageError


@contextmanager
def open_output(path: Path | None, *, append: bool) -> Iterator[TextIO]:
    """stdout, or a file: appended to as it is written, or else replaced as a whole at the end.

    Raises UsageError when the file can't be written, as far as that can be told beforehand.
    """
    if path is None:
        yield sys.stdout
    elif append:
        with _named(path):
            file = path.open("a", encoding="utf-8", errors="surrogateescape")
        with file:
            yield file
    else:
        check_writable(path)
        document = StringIO()
        try:
            yield document
        finally:  # what there is, also when something ends the run early
            if document.tell():
                write_whole(path, document.getvalue())


def check_writable(path: Path, option: str = "--output") -> None:
    """Raise UsageError for a file that couldn't be written, before work is spent on it."""
    with _named(path, option):
        if path.is_dir():
            raise IsADirectoryError(0, "is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise PermissionError(0, "permission denied")


def write_whole(path: Path, text: str, option: str = "--output") -> None:
    """Write a file so that it is there whole or not at all.

    Raises UsageError that names the ``option`` which asked for it.
    """
    with _named(path, option):
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
def _named(path: Path, option: str = "--output") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror or error}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
