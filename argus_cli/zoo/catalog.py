"""Where models are: bundled, in a folder given by path, or in the Hugging Face cache.

Knows nothing of networks and tensors. It reads the cache's layout itself, in one short function:
importing huggingface_hub's own look-up takes 0.15 to 0.2 s, its settings alone 0.02 s.
"""

import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from types import ModuleType

from argus_cli.errors import ModelDamaged, ModelError, ModelMissing, UsageError
from argus_cli.zoo.manifest import (
    COMMIT,
    SHA256,
    FileState,
    Manifest,
    ModelFile,
    load_manifests,
    models_folder,
    size_of,
)

BUNDLED = "glimpse"
PREFERRED = ("smolvlm2-500m", "smolvlm-256m")


@dataclass(frozen=True)
class ModelFolder:
    """A model that is complete on disk; the manifest is None for a folder given by path."""

    name: str
    path: Path
    revision: str
    manifest: Manifest | None = None


class Presence(StrEnum):
    """How much of a model is on this machine."""

    BUNDLED = "bundled"
    COMPLETE = "complete"
    PARTIAL = "partial"
    ABSENT = "absent"


@dataclass(frozen=True)
class Status:
    """What `models list` says about one model."""

    presence: Presence
    bytes_on_disk: int


def find(model: str) -> ModelFolder:
    """The folder of a known model, or the one at this path if it looks like a path."""
    if _is_path(model) and model not in _by_name():
        return _folder(Path(os.path.expanduser(model)))  # of a ~user that isn't there, the text
    return locate(named(model))


def named(model: str) -> Manifest:
    """The manifest for a name, or for the hub repository behind it."""
    if manifest := _by_name().get(model):
        return manifest
    close = get_close_matches(model.lower(), load_manifests(), n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    shown = model if re.fullmatch(r"[\w./+-]+", model) else repr(model)
    is_folder = not _is_path(model) and os.path.isdir(model)
    folder = f"; the folder is -m ./{model}" if is_folder else ""
    raise ModelMissing(
        f"no model is called {shown}{hint}: there are {', '.join(load_manifests())}"
        f" (`argus models pull NAME`){folder}"
    )


def default_model() -> tuple[ModelFolder, str]:
    """The model to take when none is named, and why that one."""
    if model := os.environ.get("ARGUS_MODEL"):
        return find(model), "named by ARGUS_MODEL"
    for name in PREFERRED:
        with suppress(ModelError):
            return find(name), "the best one on this machine"
    return find(BUNDLED), "bundled, as no other is on this machine"


def locate(manifest: Manifest) -> ModelFolder:
    """The model's folder; an error names the first file that isn't as it should be."""
    folder = snapshot(manifest)
    states = {file.path: file.state_of(folder / file.path) for file in manifest.files}
    wrong = {path: state for path, state in states.items() if state is not FileState.OK}
    if not wrong:
        revision = manifest.revision if manifest.bundled else folder.name
        return ModelFolder(manifest.name, folder, revision, manifest)
    way_out = "reinstall argus" if manifest.bundled else f"run `argus models pull {manifest.name}`"
    if set(states.values()) == {FileState.MISSING}:
        raise ModelMissing(f"{manifest.name} isn't on this machine: {way_out}")
    path, state = next(iter(wrong.items()))
    raise ModelDamaged(f"{folder / path}: {state}; {way_out}")


def status(manifest: Manifest) -> Status:
    """Whether the model is on this machine, by its files' sizes; unfinished downloads count."""
    folder = snapshot(manifest)
    paths = {folder / file.path: file for file in manifest.files}
    states = {path: file.state_of(path) for path, file in paths.items()}
    found = [path for path, state in states.items() if state is not FileState.MISSING]
    if not manifest.bundled:
        found += repo_folder(manifest).glob("blobs/*.incomplete")
    presence = Presence.PARTIAL if found else Presence.ABSENT
    if set(states.values()) == {FileState.OK}:
        presence = Presence.BUNDLED if manifest.bundled else Presence.COMPLETE
    return Status(presence, sum(map(size_of, found)))


def verify(manifest: Manifest) -> Mapping[str, FileState]:
    """Read every file of the model and compare its size and sha256."""
    folder = snapshot(manifest)
    return {file.path: _deep_state(folder / file.path, file) for file in manifest.files}


def remove(manifest: Manifest) -> int:
    """Delete the model's repository from the Hugging Face cache; return the bytes freed."""
    if manifest.bundled:
        raise UsageError(f"{manifest.name} is part of argus and can't be removed")
    folder = repo_folder(manifest)
    if not folder.is_dir():
        raise ModelMissing(f"{manifest.name} isn't on this machine: nothing to remove")
    blobs = {path.resolve() for path in folder.rglob("*") if path.is_file()}
    freed = sum(map(size_of, blobs))
    from huggingface_hub import scan_cache_dir

    cache = scan_cache_dir(folder.parent)
    # delete_revisions takes bare commits, which another repository may share: show it ours alone.
    ours = [repo for repo in cache.repos if repo.repo_path.name == folder.name]
    commits = (revision.commit_hash for repo in ours for revision in repo.revisions)
    replace(cache, repos=frozenset(ours)).delete_revisions(*commits).execute()
    try:
        # What the scan passes over: an unfinished first download, a broken link.
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ModelError(f"{folder} can't be removed: {error.strerror or error}") from error
    return freed


def snapshot(manifest: Manifest) -> Path:
    """Where the model's files are, or would be: models--OWNER--NAME/snapshots/COMMIT."""
    if manifest.bundled:
        return models_folder() / manifest.name
    repo, revision = repo_folder(manifest), manifest.revision
    reference = repo / "refs" / revision
    if not COMMIT.fullmatch(revision) and reference.is_file():
        written = reference.read_text(encoding="utf-8", errors="replace").strip()
        revision = written if COMMIT.fullmatch(written) else revision  # not what a crash has left
    return repo / "snapshots" / revision


def repo_folder(manifest: Manifest) -> Path:
    """The folder of the model's repository in the Hugging Face cache."""
    parts = ["models", *str(manifest.repo).split("/")]
    return Path(hub_settings().HF_HUB_CACHE) / "--".join(parts)


def hub_settings() -> ModuleType:
    """huggingface_hub's settings: HF_HOME and its relatives, read when first imported."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # argus tells nobody what runs here
    try:
        from huggingface_hub import constants
    except ValueError as error:  # it reads its numbers as it is imported
        raise UsageError(f"one of the HF_ environment variables isn't valid: {error}") from None
    return constants


def _by_name() -> Mapping[str, Manifest]:
    manifests = load_manifests()
    return {m.repo: m for m in manifests.values() if m.repo} | dict(manifests)


def _is_path(model: str) -> bool:
    return re.search(r"[/\\]|^[.~]", model) is not None


def _folder(path: Path) -> ModelFolder:
    """A model in a folder of the user's own, or a snapshot in somebody's cache."""
    if not os.path.isdir(path):  # Path.is_dir() raises for a name that is too long
        raise ModelMissing(f"{path}: no such folder")
    if not (path / "config.json").is_file():
        raise ModelDamaged(f"{path}: no config.json, so this isn't a model's folder")
    path = path.resolve()
    revision = path.name if COMMIT.fullmatch(path.name) else "local"
    return ModelFolder(path.name, path, revision)


def _deep_state(path: Path, file: ModelFile) -> FileState:
    """Fill in the sha256 that the hub stated: a large file links to a blob called after it."""
    blob = Path(os.readlink(path)).name if path.is_symlink() else ""
    stated = blob if SHA256.fullmatch(blob) else None
    return replace(file, sha256=file.sha256 or stated).state_of(path, deep=True)
