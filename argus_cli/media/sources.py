"""Inputs on the command line -> the pictures or films they name, checked before any model loads.

What is named is taken as it is. What a folder or a glob brings is taken by its suffix, in natural
order, without hidden files and the droppings of operating systems. Never opens a picture.
"""

import os
import re
import stat
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from hashlib import blake2b
from logging import getLogger
from math import inf
from pathlib import Path, PurePath
from typing import BinaryIO

from argus_cli.errors import UsageError

logger = getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """One input: what records call it, and where its bytes are."""

    name: str
    file: Path | BinaryIO
    bytes: int | None = None  # None for what is no file
    mtime_ns: int | None = None
    folder: str = ""  # sub-folder in which it lies, below the folder that was named; with /


@dataclass(frozen=True)
class Kind:
    """What a folder is searched for: how messages call it, and its suffixes in lower case."""

    name: str
    suffixes: tuple[str, ...]

    def has(self, name: str) -> bool:
        """Whether a file of this name is one of them."""
        return name.lower().endswith(self.suffixes)


PICTURES = Kind(
    "pictures",
    (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".avif", ".avifs",
     ".heic", ".heics", ".heif", ".heifs", ".hif", ".gif", ".tif", ".tiff", ".bmp",
     ".ppm", ".pgm", ".pbm", ".pnm", ".pfm"),
)  # fmt: skip
FILMS = Kind(
    "films",
    (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".m2v", ".vob", ".ts",
     ".mts", ".m2ts", ".flv", ".ogv", ".wmv", ".asf", ".mxf", ".3gp", ".3g2"),
)  # fmt: skip
# What operating systems and NAS boxes leave in folders, besides hidden files.
JUNK = {
    "@eadir", "@recycle", "@recently-snapshot", "@tmp", "#recycle", "#snapshot", "$recycle.bin",
    "recycler", "system volume information", "lost+found", "__macosx",
}  # fmt: skip

Shard = tuple[int, int]  # number, from 1 on, and of how many
Found = tuple[str, Source]  # real path, under which a file counts once


def resolve(
    inputs: Sequence[str],
    *,
    lists: Sequence[str] = (),
    kind: Kind = PICTURES,
    recursive: bool = True,
) -> list[Source]:
    """Files, folders, globs and "-" (bytes on stdin) in their order, then the paths in ``lists``.

    A list is a file of paths, or "-" for stdin. A file that is named twice is given once. Raises
    UsageError for a path that doesn't exist, where nothing is found at all, and for stdin named
    twice.
    """
    if [*inputs, *lists].count("-") > 1:
        raise UsageError("- can be given once: stdin holds one picture, or one list")
    requests = {name: _expand(name, kind, recursive) for name in inputs}
    requests |= {f"--from {name}": _listed(name, kind, recursive) for name in lists}
    found: dict[str, Source] = {}
    barren = []
    for request, files in requests.items():
        some = list(files)
        if not some:
            barren.append(f"{request}: no {kind.name} in it ({' '.join(kind.suffixes)})")
        for real, source in some:
            found.setdefault(real, source)
    if not found:
        raise UsageError("; ".join(barren))
    for message in barren:
        logger.warning(message)
    return list(found.values())


def spare_media(
    output: Path | None, inputs: Iterable[object] = (), option: str = "--output"
) -> None:
    """Raise UsageError for an output that is one of the ``inputs``, by whatever name or link, or
    has a picture's or film's name: those are never written to."""
    if output is None:
        return
    for path in (output, Path(os.path.realpath(output))):
        if PICTURES.has(path.name) or FILMS.has(path.name):
            raise UsageError(
                f"{option} {output}: has the name of a picture or film; choose another"
            )
    if os.path.isfile(output) and any(_is_same(output, each) for each in inputs):
        raise UsageError(f"{option} {output}: is an input; choose another")


def _is_same(output: Path, given: object) -> bool:
    try:
        return isinstance(given, str | os.PathLike) and os.path.samefile(output, given)
    except (OSError, ValueError):  # one that isn't there
        return False


def parse_shard(text: str) -> Shard:
    """ "I/N" -> (I, N): the part I, from 1 on, of N. Raises UsageError."""
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    number, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise UsageError(f"--shard {text}: not I/N, such as 1/4, with I from 1 to N")
    return number, count


def falls_to(shard: Shard, source: Source) -> bool:
    """Whether a source is in a shard, by its name below the folder that was named.

    No mount point matters, nor whether macOS or Linux spells it.
    """
    number, count = shard
    key = unicodedata.normalize("NFC", f"{source.folder}/{PurePath(source.name).name}")
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % count == number - 1


def _expand(name: str, kind: Kind, recursive: bool) -> Iterator[Found]:
    """What one word of the command line stands for."""
    if name == "-":
        yield name, Source("<stdin>", sys.stdin.buffer)
        return
    try:
        info = os.stat(name)
    except (OSError, ValueError) as error:  # missing, too long, not allowed, a null byte
        if not re.search(r"[*?[]", name):
            raise UsageError(_reason(name, error)) from None
        matches = list(_matching(name, kind))
        if not matches:
            raise UsageError(f"{name}: no such file, and no {kind.name} match it") from None
        yield from matches
    else:
        yield from _taken(name, info, kind, recursive)


def _listed(listing: str, kind: Kind, recursive: bool) -> Iterator[Found]:
    """What stands in a list: paths as they are on disk, one a line or ended by null bytes."""
    try:
        data = sys.stdin.buffer.read() if listing == "-" else Path(listing).read_bytes()
    except (OSError, ValueError) as error:
        raise UsageError(f"--from {_reason(listing, error)}") from None
    data = data.removeprefix(b"\xef\xbb\xbf")
    lines = data.split(b"\0") if b"\0" in data else data.replace(b"\r\n", b"\n").split(b"\n")
    for name in map(os.fsdecode, filter(None, lines)):
        try:
            info = os.stat(name)
        except OSError as error:
            raise UsageError(f"--from {listing}: {_reason(name, error)}") from None
        path = PurePath(name)
        inside = [part for part in path.parent.parts if part not in ("..", path.anchor)]
        yield from _taken(name, info, kind, recursive, "/".join(inside))


def _reason(name: str, error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{name or repr(name)}: no such file"
    return f"{name}: {getattr(error, 'strerror', None) or error}"


def _taken(
    name: str, info: os.stat_result, kind: Kind, recursive: bool, folder: str = ""
) -> Iterator[Found]:
    """What exists and was named: a folder for what is in it, anything else for itself."""
    if stat.S_ISDIR(info.st_mode):
        yield from _walk(name, kind.has, inf if recursive else 1)
    elif stat.S_ISREG(info.st_mode):
        source = Source(name, Path(name), info.st_size, info.st_mtime_ns, folder)
        yield os.path.realpath(name), source
    else:  # a pipe, a device
        yield os.path.realpath(name), Source(name, Path(name), folder=folder)


def _matching(pattern: str, kind: Kind) -> Iterator[Found]:
    """Files below the last folder that the glob spells out; ** stands for any number of folders."""
    parts = PurePath(pattern).parts
    fixed = next(i for i, part in enumerate(parts) if re.search(r"[*?[]", part))
    wild = parts[fixed:]
    return _walk(
        str(Path(*parts[:fixed])),
        lambda below: kind.has(below) and _fits(below.split("/"), wild),
        inf if "**" in wild else len(wild),
    )


def _fits(names: Sequence[str], wild: Sequence[str]) -> bool:
    if not wild:
        return not names
    if wild[0] == "**":
        return _fits(names, wild[1:]) or bool(names) and _fits(names[1:], wild)
    return bool(names) and fnmatch(names[0], wild[0]) and _fits(names[1:], wild[1:])


@dataclass(frozen=True)
class _Place:
    """Something met on a walk: where it lies below the root, and its real path."""

    below: str
    real: str
    entry: os.DirEntry[str] | None = None  # None for the root


def _walk(root: str, wanted: Callable[[str], bool], deepest: float) -> Iterator[Found]:
    """Files below a folder, at most ``deepest`` levels down, each folder once.

    Links are followed. What can't be read, or leads nowhere, is a warning.
    """
    start = Path(root)
    seen: set[tuple[int, int]] = set()
    todo = [_Place("", os.path.realpath(root))]
    while todo:
        place = todo.pop()
        path, entry = start / place.below, place.entry
        try:
            if entry is None or entry.is_dir():
                if place.below.count("/") + bool(place.below) < deepest:
                    todo += reversed(_entries(path, place, seen))
            elif wanted(place.below) or entry.is_symlink():
                info = entry.stat()
                if wanted(place.below) and stat.S_ISREG(info.st_mode):
                    folder = place.below.rpartition("/")[0]
                    source = Source(str(path), path, info.st_size, info.st_mtime_ns, folder)
                    yield place.real, source
        except OSError as error:
            logger.warning("%s: left out, %s", path, error.strerror)


def _entries(path: Path, place: _Place, seen: set[tuple[int, int]]) -> list[_Place]:
    """What is in a folder, in natural order; nothing where a link leads back to one."""
    info = os.stat(path)
    if (info.st_dev, info.st_ino) in seen:
        return []
    seen.add((info.st_dev, info.st_ino))
    with os.scandir(path) as entries:
        kept = [e for e in entries if not e.name.startswith(".") and e.name.lower() not in JUNK]
    kept.sort(key=lambda entry: _natural(entry.name))
    return [
        _Place(
            f"{place.below}/{entry.name}" if place.below else entry.name,
            os.path.realpath(entry.path) if entry.is_symlink() else f"{place.real}/{entry.name}",
            entry,
        )
        for entry in kept
    ]


def _natural(name: str) -> tuple[list[str | int], str]:
    """Sorts img2 before img10 and pays no heed to case, unless all else is equal."""
    parts = re.split(r"(\d+)", name.casefold())
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name
