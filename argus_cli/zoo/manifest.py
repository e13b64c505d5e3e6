"""Reads models/<name>/manifest.toml: what a model is, where it is from, which files make it up.

It can compare files with that, but knows nothing of caches, downloads and the network.
"""

import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from argus_cli.errors import ModelDamaged

COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
_REPO = re.compile(r"\w[\w.-]*/\w[\w.-]*")

T = TypeVar("T", "ModelFile", "Manifest")


class FileState(StrEnum):
    """How a file on disk compares with its entry in the manifest."""

    OK = "ok"
    MISSING = "missing"
    SIZE = "wrong size"
    SHA256 = "wrong sha256"


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """One file of a model; size and sha256 are absent where nobody has confirmed them."""

    path: str
    size: int | None = None
    sha256: str | None = None

    def __post_init__(self) -> None:
        path = PurePosixPath(self.path)
        # A manifest must never name anything outside the model's own folder, on any system.
        if (
            not path.name
            or path.is_absolute()
            or ".." in path.parts
            or set(self.path) & set("\\:\0")
        ):
            raise ValueError(f"path {self.path!r} leaves the model's folder")
        if self.sha256 is not None and not SHA256.fullmatch(self.sha256):
            raise ValueError(f"sha256 of {self.path} isn't 64 hexadecimal digits")

    def state_of(self, path: Path, *, deep: bool = False) -> FileState:
        """Compare a file's size, and if deep its sha256 too, as far as they are known."""
        try:
            size = path.stat().st_size
        except OSError:
            return FileState.MISSING
        if size == 0 or self.size not in (None, size):
            return FileState.SIZE
        if deep and self.sha256 not in (None, sha256_of(path)):
            return FileState.SHA256
        return FileState.OK


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One model. Without a repo it is bundled: its files lie beside the manifest."""

    name: str
    summary: str
    licence: str
    parameters: int
    memory_bytes: int  # the weights in bfloat16; the activations and the KV cache come on top
    revision: str  # a commit, or "main" as long as nobody could pin one
    files: tuple[ModelFile, ...]
    repo: str | None = None

    def __post_init__(self) -> None:
        if not self.files:
            raise ValueError("no files")
        if self.repo is None:
            return
        if not _REPO.fullmatch(self.repo):
            raise ValueError(f"repo {self.repo!r} isn't owner/name")
        if self.revision != "main" and not COMMIT.fullmatch(self.revision):
            raise ValueError(f"revision {self.revision!r} is neither a commit nor main")

    @property
    def bundled(self) -> bool:
        """True when the model is shipped with argus."""
        return self.repo is None

    @property
    def size_bytes(self) -> int:
        """What the files take on disk, as far as their sizes are known."""
        return sum(file.size or 0 for file in self.files)


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def size_of(path: Path) -> int:
    """A file's size in bytes, 0 if another process has just moved or removed it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def models_folder() -> Path:
    """The folder that holds one subfolder per model."""
    return Path(str(files("argus_cli.models")))


@cache
def load_manifests() -> Mapping[str, Manifest]:
    """Every model that argus knows by name, the smallest first."""
    manifests = [read_manifest(path) for path in models_folder().glob("*/manifest.toml")]
    return {m.name: m for m in sorted(manifests, key=lambda m: (m.parameters, m.name))}


def read_manifest(path: Path) -> Manifest:
    """Parse one manifest strictly; a model is called like its folder."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        table["files"] = tuple(_build(ModelFile, entry) for entry in table.get("files", ()))
        manifest = _build(Manifest, table)
        if manifest.name != path.parent.name:
            raise ValueError(f"name {manifest.name!r} isn't that of the folder")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ModelDamaged(f"{path}: {error}; reinstall argus") from error
    return manifest


def _build(kind: type[T], table: Mapping[str, Any]) -> T:
    """``kind(**table)``, which refuses unknown and missing keys; types are checked here."""
    record = kind(**table)
    for field in fields(record):
        expected: Any = tuple if field.name == "files" else field.type
        if not isinstance(getattr(record, field.name), expected):
            raise TypeError(f"{field.name} isn't {field.type}")
    return record
