"""Captions beside pictures: which file belongs to which, planned before any work, written whole.

What is in a file is the business of a Content: plain text here, XMP in output/xmp.py. A picture
is never written. Knows nothing of models.
"""

import errno
import os
import re
import stat
import unicodedata
from collections.abc import Iterable
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import BinaryIO, Protocol

from argus_cli.errors import ArgusError, InputError, UsageError
from argus_cli.output.files import write_whole
from argus_cli.output.records import printable
from argus_cli.schema import Caption


class Mode(StrEnum):
    """What becomes of a text that is there already."""

    keep = "keep"
    overwrite = "overwrite"
    append = "append"
    prepend = "prepend"


class Picture(Protocol):
    """What is told of an input; a hashable object, such as media.sources.Source."""

    @property
    def name(self) -> str: ...

    @property
    def file(self) -> Path | BinaryIO: ...

    @property
    def folder(self) -> str: ...


class Content(Protocol):
    """One kind of sidecar. ``old`` is what the file holds; a blank file counts as none."""

    def is_there(self, old: bytes) -> bool:
        """Whether it says already what a caption would say. Raises InputError if damaged."""

    def update(self, old: bytes | None, text: str, caption: Caption) -> str | None:
        """What the file shall hold once ``text``, one line, is told; None leaves it as it is.

        Raises InputError for a damaged one.
        """


def plan(
    pictures: Iterable[Picture],
    extension: str,
    *,
    folder: Path | None = None,
    mode: Mode = Mode.keep,
    full_name: bool = False,
    style: str = "caption",
) -> "Sidecars":
    """Where each picture's sidecar goes: beside it, or to the same sub-folder under ``folder``.

    ``extension`` comes with or without its dot; xmp means XMP, all others text. ``full_name``
    gives photo.jpg.txt for photo.txt. In ``style`` tags texts are lists. What has no file
    (stdin) gets no sidecar. Raises UsageError for two pictures with one sidecar, for a sidecar
    that is a picture, and for a folder that can't be written.
    """
    given, extension = extension, extension.removeprefix(".")
    if not extension or re.search(r"[/\\\0]", extension):
        raise UsageError(f"--sidecar {given!r}: not an extension such as txt")
    xmp = extension.lower() == "xmp"
    paths = {}
    for picture in pictures:
        if isinstance(picture.file, Path):
            name = picture.file.name if full_name else picture.file.stem
            parent = folder / picture.folder if folder else picture.file.parent
            paths[picture] = parent / f"{name}.{extension}"
            darktable = parent / f"{picture.file.name}.{extension}"
            if xmp and not full_name and os.path.exists(darktable):
                paths[picture] = darktable
    _check(paths, f"--sidecar {extension}", full_name=full_name, beside=folder is None)
    if not xmp:
        return Sidecars(paths, TextContent(mode, style), mode)
    from argus_cli.output.xmp import XmpContent

    return Sidecars(paths, XmpContent(mode, style), mode)


def _check(paths: dict[Picture, Path], option: str, *, full_name: bool, beside: bool) -> None:
    """Raise UsageError for what plan() refuses.

    Case doesn't count on many file systems. It does where two pictures differ by nothing else,
    so that full names beside them can't meet.
    """
    real = cache(os.path.realpath)

    def key(path: Path, case_counts: bool = False) -> str:
        text = unicodedata.normalize("NFC", f"{real(path.parent)}/{path.name}")
        return text if case_counts else text.casefold()

    originals = {key(picture.file) for picture in paths if isinstance(picture.file, Path)}
    owners: dict[str, Picture] = {}
    for picture, path in paths.items():
        if key(path) in originals:
            raise UsageError(f"{option}: {path} is a picture itself; choose another extension")
        first = owners.setdefault(key(path, full_name and beside), picture)
        if first is not picture:
            way_out = "--sidecar-full-name tells them apart"
            if full_name or Path(first.name).name.casefold() == Path(picture.name).name.casefold():
                way_out = "rename one, or name the folder that holds both"
            raise UsageError(
                f"{option}: {first.name} and {picture.name} would share {path}; {way_out}"
            )
    for parent in {path.parent for path in paths.values()}:
        there = next(p for p in (parent, *parent.parents) if os.path.exists(p))
        if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            raise UsageError(f"{option}: {there} can't be written; see --sidecar-dir FOLDER")


class Sidecars:
    """Made by plan(). Asked before each picture, told after it."""

    def __init__(self, paths: dict[Picture, Path], content: Content, mode: Mode):
        self._paths, self._content, self.mode = paths, content, mode

    def todo(self, picture: Picture) -> bool:
        """False where a sidecar is there and is kept, so that the picture needs no caption."""
        path = self._paths.get(picture)
        if path is None or self.mode is not Mode.keep:
            return True
        try:
            old = _read(path)
            return old is None or not self._content.is_there(old)
        except InputError:  # write() tells
            return True

    def write(self, picture: Picture, caption: Caption) -> Path | None:
        """Write its sidecar and say where; None where it has none or the old one is kept.

        Raises InputError when this one can't be written, ArgusError when the disk takes no more.
        """
        path = self._paths.get(picture)
        if path is None:
            return None
        line = one_line(caption.caption)
        try:
            if os.path.islink(path):  # among a stranger's pictures it may lead to anything of ours
                raise InputError("left as it is, a link")
            if not line:
                raise InputError("not written, the caption is empty")
            text = self._content.update(_read(path), line, caption)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        if text is None:
            return None
        try:
            write_whole(path, text, "--sidecar")
        except ArgusError as error:
            cause = error.__context__
            ends_all = isinstance(cause, OSError) and cause.errno in _NO_MORE
            kind = ArgusError if ends_all else InputError
            raise kind(str(error)) from None
        return path


_LARGEST = 64 * 2**20  # bytes: far more than any photo manager writes
_NO_MORE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class TextContent:
    """One line of UTF-8."""

    def __init__(self, mode: Mode, style: str):
        self._mode, self._tags = mode, style == "tags"

    def is_there(self, old: bytes) -> bool:
        return True

    def update(self, old: bytes | None, text: str, caption: Caption) -> str | None:
        if old is None:
            return f"{text}\n"
        if b"\0" in old:
            raise InputError("left as it is, no text file")
        if self._mode is Mode.keep:
            return None
        before = old.decode("utf-8", "surrogateescape").removeprefix("\ufeff").strip()
        if self._tags:
            return ", ".join(joined_tags(split_tags(before), split_tags(text), self._mode)) + "\n"
        return joined(before, text, self._mode) + "\n"


def joined(old: str, new: str, mode: Mode) -> str:
    """Two texts as ``mode`` wants them; appending what is at the end already changes nothing."""
    if mode is Mode.append:
        return old if old.endswith(new) else f"{old} {new}".strip()
    if mode is Mode.prepend:
        return old if old.startswith(new) else f"{new} {old}".strip()
    return new


def joined_tags(old: list[str], new: list[str], mode: Mode) -> list[str]:
    """Two lists as ``mode`` wants them, each tag once whatever its case."""
    tags = {Mode.append: [*old, *new], Mode.prepend: [*new, *old]}.get(mode, new)
    unique: dict[str, str] = {}
    for tag in tags:
        unique.setdefault(tag.casefold(), tag)
    return list(unique.values())


def split_tags(text: str) -> list[str]:
    """The tags of a list with commas."""
    return [tag for part in text.split(",") if (tag := part.strip())]


def one_line(text: str) -> str:
    """Text that any UTF-8 or XML file takes, without line breaks."""
    return " ".join(re.sub("[\ud800-\udfff\ufffe\uffff]", "\ufffd", printable(text)).split())


def _read(path: Path) -> bytes | None:
    """What a sidecar holds; None when it isn't there or is blank."""
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode) or info.st_size > _LARGEST:  # a pipe would never end
            raise InputError("left as it is, no file of at most 64 MiB")
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(error.strerror or str(error)) from None
    return data if data.strip() else None
