"""Inputs on the command line -> the pictures or films they name, checked before any model loads."""

import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from argus_cli.errors import UsageError


@dataclass(frozen=True)
class Source:
    """One input: what records call it, and where its bytes are."""

    name: str
    file: Path | BinaryIO
    bytes: int | None = None  # None for what is no file
    mtime_ns: int | None = None


def resolve(inputs: list[str]) -> list[Source]:
    """Paths, or "-" for the bytes on stdin, in their order.

    Raises UsageError for a path that doesn't exist, a folder, or stdin named twice.
    """
    if inputs.count("-") > 1:
        raise UsageError("- can be given once: stdin holds one picture")
    return [_source(name) for name in inputs]


def _source(name: str) -> Source:
    if name == "-":
        return Source("<stdin>", sys.stdin.buffer)
    path = Path(name)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UsageError(f"{name}: no such file") from None
    except (OSError, ValueError) as error:  # too long, not allowed, a null byte
        raise UsageError(f"{name}: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(mode):
        raise UsageError(f"{name}: is a folder; name the files in it, e.g. {path / '*.jpg'}")
    return Source(name, path)
