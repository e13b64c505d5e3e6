"""Fetches a model's files from the hub into the Hugging Face cache, and nothing but those.

Knows nothing of what the files mean. huggingface_hub speaks the protocol (endpoint, token, proxy,
redirects, retries); the part that has arrived is kept here, because huggingface_hub throws it away
when a download is broken off, and 5 GB are too much to begin again.
"""

import errno
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from argus_cli.errors import DownloadError, ModelDamaged
from argus_cli.zoo import catalog
from argus_cli.zoo.manifest import COMMIT, SHA256, FileState, Manifest, ModelFile, size_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)
_SHORT = re.compile("[0-9]{1,2}")  # seconds that a hub may let us wait


@dataclass(frozen=True)
class _Offer:
    """What the hub says about a file before it sends it."""

    url: str
    commit: str
    etag: str  # the sha256 of a large file, the git hash of a small one
    file: ModelFile  # the manifest's entry with size and sha256 filled in


def pull(manifest: Manifest, *, force: bool = False, progress: bool = True) -> catalog.ModelFolder:
    """Bring a model onto this machine and check it; no network if it is there and right.

    force fetches every file again, and the newest version of a model that isn't pinned.
    """
    wanted = manifest.files if force else _wrong(manifest)
    if manifest.bundled or not wanted:
        return catalog.locate(manifest)
    if catalog.hub_settings().HF_HUB_OFFLINE:
        raise DownloadError(
            f"{manifest.name}: {wanted[0].path} isn't on this machine and may not be fetched"
            " (--offline or HF_HUB_OFFLINE)"
        )
    if force or not COMMIT.fullmatch(catalog.snapshot(manifest).name):
        with _plain_errors(manifest, manifest.files[0]):
            _record_commit(manifest)
        wanted = manifest.files if force else _wrong(manifest)
    folder = catalog.snapshot(manifest)
    _need_space(manifest, sum(file.size or 0 for file in wanted))
    for file in wanted:
        with _plain_errors(manifest, file):
            offer = _ask(manifest, file, folder.name)
            _fetch(manifest, offer, folder / file.path, force, progress)
    return catalog.locate(manifest)


def _wrong(manifest: Manifest) -> tuple[ModelFile, ...]:
    states = catalog.verify(manifest)
    return tuple(file for file in manifest.files if states[file.path] is not FileState.OK)


def _record_commit(manifest: Manifest) -> None:
    """Write down which commit "main" is now, where huggingface_hub does; nothing if pinned."""
    if not COMMIT.fullmatch(manifest.revision):
        commit = _ask(manifest, manifest.files[0], manifest.revision).commit
        reference = catalog.repo_folder(manifest) / "refs" / manifest.revision
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit, encoding="utf-8")


def _ask(manifest: Manifest, file: ModelFile, revision: str) -> _Offer:
    """Ask for a file's size and digest; refuse anything but the pinned file before it is sent."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(str(manifest.repo), file.path, revision=revision)
    answer = get_hf_file_metadata(url)
    etag, commit = answer.etag or "", answer.commit_hash or ""
    # Both become names in the cache: an answer must not be able to leave it.
    plain = COMMIT.fullmatch(commit) and re.fullmatch(r"[\w-]{1,100}", etag)
    if not plain or not answer.size or answer.size < 0:
        raise DownloadError(f"what answers for {url} isn't a hub: check HF_ENDPOINT and the proxy")
    size, sha256 = answer.size, etag if SHA256.fullmatch(etag) else None
    for stated, pinned in ((size, file.size), (sha256, file.sha256)):
        if None not in (stated, pinned) and stated != pinned:
            raise ModelDamaged(
                f"{manifest.name}: the hub offers another {file.path} ({stated}) than the one"
                f" argus knows ({pinned}): upgrade argus, or check HF_ENDPOINT"
            )
    known = replace(file, size=file.size or size, sha256=file.sha256 or sha256)
    return _Offer(url, commit, etag, known)


def _fetch(manifest: Manifest, offer: _Offer, path: Path, force: bool, progress: bool) -> None:
    """Download into blobs/ETAG, going on where an earlier try ended, and link ``path`` to it.

    Wrong bytes don't stay.
    """
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # exported lazily
        WeakFileLock,
        build_hf_headers,
        tqdm,
    )

    repo, file = catalog.repo_folder(manifest), offer.file
    blob = repo / "blobs" / offer.etag
    part = blob.with_name(f"{blob.name}.incomplete")
    lock = repo.parent / ".locks" / repo.name / f"{offer.etag}.lock"
    for folder in (blob.parent, lock.parent):
        folder.mkdir(parents=True, exist_ok=True)
    bar = partial(tqdm, leave=False, disable=None if progress else True)  # None: on a terminal
    with WeakFileLock(lock):
        if not force and file.state_of(blob, deep=True) is FileState.OK:
            return _link(blob, path)
        with _Sink(FileIO(part, "ab")) as sink, _no_long_wait(manifest):
            sink.most = file.size or 0
            have = sink.tell()
            if have > sink.most:
                have = sink.seek(sink.truncate(0))
            _need_space(manifest, sink.most)
            logger.info("fetching %s from byte %d on", file.path, have)
            http_get(
                offer.url,
                sink,
                resume_size=have,
                headers=build_hf_headers(),
                expected_size=file.size,
                displayed_filename=file.path,
                tqdm_class=bar,  # type: ignore[arg-type]  # a factory will do
            )
        if (state := file.state_of(part, deep=True)) is not FileState.OK:
            part.unlink()
            raise ModelDamaged(
                f"{file.path} arrived with a {state} and was thrown away:"
                f" run `argus models pull {manifest.name}` again"
            )
        part.replace(blob)
        _link(blob, path)


@contextmanager
def _no_long_wait(manifest: Manifest) -> Iterator[None]:
    """Within, a hub that sends us away for long is an error: huggingface_hub waits, if for days."""
    from huggingface_hub import get_session

    def check(response: Any) -> None:
        limits = re.findall(r"t\s*=\s*(\d+)", response.headers.get("ratelimit", ""))
        for wait in (response.headers.get("retry-after", "").strip(), *limits):
            is_long = wait.isdigit() and not _SHORT.fullmatch(wait)
            if is_long and response.status_code in (408, 429):
                reason = f"the hub takes no request for {wait[:9]} s, try again after that"
                raise DownloadError(f"{manifest.name}: {reason}")

    hooks = get_session().event_hooks["response"]
    hooks.append(check)
    try:
        yield
    finally:
        hooks.remove(check)


class _Sink(BufferedWriter):
    """Takes as many bytes as were announced: a hub could send without end, or unpack to that."""

    most = 0

    def write(self, data: "ReadableBuffer") -> int:
        if self.tell() + len(memoryview(data)) > self.most:
            self.truncate(0)
            raise OSError("more arrived than the hub had announced, and was thrown away")
        return super().write(data)


def _link(blob: Path, path: Path) -> None:
    """Make the snapshot's entry: a link, or the file itself where links can't be made.

    Whoever loads the model meanwhile finds the old entry or the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    try:
        fresh.symlink_to(os.path.relpath(blob, path.parent))
    except OSError:
        blob.replace(path)
    else:
        fresh.replace(path)


def _need_space(manifest: Manifest, size: int) -> None:
    """Refuse a download that wouldn't fit; what an earlier try has brought counts."""
    repo = catalog.repo_folder(manifest)
    size -= sum(map(size_of, repo.glob("blobs/*.incomplete")))
    free = shutil.disk_usage(next(p for p in repo.parents if p.exists())).free
    if size > free:
        raise DownloadError(
            f"{manifest.name}: {size / 1e6:,.0f} MB needed in {repo.parent}, {free / 1e6:,.0f} MB"
            " free: make room or set HF_HOME to another disk"
        )


@contextmanager
def _plain_errors(manifest: Manifest, file: ModelFile) -> Iterator[None]:
    """The one border where what huggingface_hub and the disk raise becomes a DownloadError."""
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of httpx

    try:
        yield
    except (HTTPError, OSError, ValueError) as error:  # ValueError: numbers that are none
        raise DownloadError(f"{manifest.name}: {_reason(error, manifest, file)}") from error


def _reason(error: Exception, manifest: Manifest, file: ModelFile) -> str:
    """One line: what went wrong, and the way out."""
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, RevisionNotFoundError

    code = getattr(getattr(error, "response", None), "status_code", None)
    text = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    if isinstance(error, RevisionNotFoundError):
        return f"{manifest.repo} has no revision {manifest.revision}: upgrade argus"
    if isinstance(error, EntryNotFoundError):
        return f"{manifest.repo} has no file {file.path}: upgrade argus"
    if isinstance(error, GatedRepoError) or code in (401, 403):
        return f"the hub refuses access to {manifest.repo} ({code}): set HF_TOKEN to a valid token"
    if code == 404:
        return f"the hub has no repository {manifest.repo}"
    if code is not None:
        return f"the hub answered {code} for {file.path}: try again later"
    if isinstance(error, ValueError):
        return f"the hub's answer for {file.path} makes no sense ({text}): check HF_ENDPOINT"
    if not isinstance(error, OSError):
        return f"no connection to the hub ({text}): check the network and HF_ENDPOINT, try again"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"the disk is full at {file.path}: make room or set HF_HOME to another disk"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error.filename} can't be written: set HF_HOME to a folder that can"
    return f"{file.path}: {text}: try again"
