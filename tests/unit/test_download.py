"""Pulling a model from a hub on the loopback: what arrives, what is checked, what is said."""

import errno
import gzip
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hub_server import COMMIT, REPO, Hub, serve, sha256

from argus_cli.cli.stderr import PrintableFormatter, say_what_the_hub_says
from argus_cli.errors import DownloadError, ModelDamaged
from argus_cli.zoo import catalog, download
from argus_cli.zoo.catalog import Presence
from argus_cli.zoo.download import pull
from argus_cli.zoo.manifest import Manifest, ModelFile

CONFIG = b'{"model_type": "idefics3"}'
WEIGHTS = bytes(range(256)) * 4096  # 1 MiB
WEIGHTS_FILE = "model.safetensors"
MANIFEST = Manifest(
    name="tiny",
    summary="a test",
    licence="Apache-2.0",
    parameters=10,
    memory_bytes=20,
    repo=REPO,
    revision=COMMIT,
    files=(
        ModelFile(path="config.json", size=len(CONFIG), sha256=sha256(CONFIG)),
        ModelFile(path=WEIGHTS_FILE, size=len(WEIGHTS)),
    ),
)
UNPINNED = replace(MANIFEST, revision="main")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub, and huggingface_hub set to it with an empty cache of its own."""
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    settings = catalog.hub_settings()
    files = {"config.json": CONFIG, WEIGHTS_FILE: WEIGHTS, "onnx/huge.onnx": b"never asked for"}
    with serve(Hub(files)) as hub:
        monkeypatch.setattr(settings, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(settings, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(settings, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(settings, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(settings, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(settings, "HF_HUB_DISABLE_TELEMETRY", True)
        monkeypatch.setattr(settings, "DOWNLOAD_CHUNK_SIZE", 2**16)
        yield hub


def blobs(suffix: str = "") -> list[Path]:
    folder = catalog.repo_folder(MANIFEST) / "blobs"
    return sorted(path for path in folder.glob(f"*{suffix}") if path.is_file())


def test_pull_brings_the_files_and_nothing_else(hub: Hub) -> None:
    found = pull(MANIFEST)
    assert found.revision == COMMIT
    assert (found.path / "config.json").read_bytes() == CONFIG
    assert (found.path / WEIGHTS_FILE).read_bytes() == WEIGHTS
    assert all(path.endswith(("/config.json", f"/{WEIGHTS_FILE}")) for path in hub.requests())
    assert catalog.status(MANIFEST).presence is Presence.COMPLETE
    assert catalog.status(MANIFEST).bytes_on_disk == len(CONFIG) + len(WEIGHTS)


def test_huggingface_hub_finds_what_argus_pulled(hub: Hub) -> None:
    from huggingface_hub import scan_cache_dir, snapshot_download, try_to_load_from_cache

    found = pull(UNPINNED)
    cache = catalog.hub_settings().HF_HUB_CACHE
    assert try_to_load_from_cache(REPO, WEIGHTS_FILE, cache) == str(found.path / WEIGHTS_FILE)
    assert snapshot_download(REPO, cache_dir=cache, local_files_only=True) == str(found.path)
    assert not scan_cache_dir(cache).warnings


def test_a_complete_model_needs_no_network(hub: Hub) -> None:
    pull(MANIFEST)
    pull(UNPINNED)
    hub.log.clear()
    assert pull(MANIFEST) == catalog.locate(MANIFEST)
    assert pull(UNPINNED).revision == COMMIT
    assert hub.log == []


def test_an_unpinned_model_records_its_commit_and_force_updates_it(hub: Hub) -> None:
    first = pull(UNPINNED)
    assert first.revision == COMMIT
    hub.commit = "d" * 40
    hub.files["config.json"] = newer = CONFIG[::-1]
    manifest = replace(UNPINNED, files=(ModelFile(path="config.json"), UNPINNED.files[1]))
    assert pull(manifest).revision == COMMIT
    found = pull(manifest, force=True)
    assert found.revision == hub.commit
    assert (found.path / "config.json").read_bytes() == newer
    assert (first.path / "config.json").read_bytes() == CONFIG


def test_a_cut_line_is_taken_up_again_at_once(hub: Hub) -> None:
    hub.break_after[WEIGHTS_FILE] = half = len(WEIGHTS) // 2
    found = pull(MANIFEST)
    assert (found.path / WEIGHTS_FILE).read_bytes() == WEIGHTS
    assert hub.log[-1][2]["range"] == f"bytes={half}-"


def test_a_broken_off_download_goes_on_where_it_ended(hub: Hub) -> None:
    half = len(WEIGHTS) // 2
    hub.break_after[WEIGHTS_FILE] = half
    hub.status_after_break = 503
    with pytest.raises(DownloadError, match="tiny: the hub answered 503 for model.safetensors"):
        pull(MANIFEST)
    status = catalog.status(MANIFEST)
    assert status.presence is Presence.PARTIAL
    assert status.bytes_on_disk == len(CONFIG) + half
    hub.status.clear()
    hub.log.clear()
    found = pull(MANIFEST)
    assert (found.path / WEIGHTS_FILE).read_bytes() == WEIGHTS
    assert not any(path.endswith("config.json") for path in hub.requests())
    assert hub.log[-1][2]["range"] == f"bytes={half}-"
    assert blobs(".incomplete") == []


@pytest.mark.parametrize("wrong", [WEIGHTS[::-1], WEIGHTS + b"more"], ids=["altered", "longer"])
@pytest.mark.parametrize("pinned", [True, False])
def test_wrong_bytes_do_not_stay(hub: Hub, wrong: bytes, pinned: bool) -> None:
    config, weights = MANIFEST.files
    digest = sha256(WEIGHTS) if pinned else None
    manifest = replace(MANIFEST, files=(config, replace(weights, sha256=digest)))
    hub.instead[WEIGHTS_FILE] = wrong
    with pytest.raises((ModelDamaged, DownloadError), match=WEIGHTS_FILE):
        pull(manifest)
    assert catalog.status(manifest).presence is Presence.PARTIAL
    assert sha256(WEIGHTS) not in {path.name for path in blobs()}
    hub.instead.clear()
    assert (pull(manifest).path / WEIGHTS_FILE).read_bytes() == WEIGHTS


@pytest.mark.parametrize("zeros", [len(WEIGHTS) + 1, 50_000_000])
def test_a_small_answer_that_unpacks_to_a_large_one_stays_small(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, zeros: int
) -> None:
    hub.instead[WEIGHTS_FILE] = gzip.compress(bytes(zeros), 1)
    hub.more_headers = {"Content-Encoding": "gzip"}
    largest = 0
    truncate = download._Sink.truncate

    def see(self: download._Sink, size: int | None = None) -> int:
        nonlocal largest
        largest = max(largest, self.tell())
        return truncate(self, size)

    monkeypatch.setattr(download._Sink, "truncate", see)
    with pytest.raises(DownloadError, match="more arrived than the hub had announced"):
        pull(replace(MANIFEST, files=MANIFEST.files[1:]))
    assert largest <= len(WEIGHTS) and sum(path.stat().st_size for path in blobs()) == 0


@pytest.mark.parametrize("size", ["", "-5", "much"])
def test_a_hub_has_to_say_how_much_it_sends(hub: Hub, size: str) -> None:
    hub.more_headers = {"X-Linked-Size": size}
    weights = ModelFile(path=WEIGHTS_FILE)
    with pytest.raises(DownloadError, match="isn't a hub: check HF_ENDPOINT"):
        pull(replace(MANIFEST, files=(weights,)))
    assert hub.requests("GET") == []


def test_what_is_left_of_a_larger_file_is_no_beginning(hub: Hub) -> None:
    part = catalog.repo_folder(MANIFEST) / "blobs" / f"{sha256(WEIGHTS)}.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(len(WEIGHTS) + 1))
    assert (pull(MANIFEST).path / WEIGHTS_FILE).read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://x", "/cdn/x"]
)
def test_a_redirect_leads_to_a_web_server_or_nowhere(hub: Hub, target: str) -> None:
    hub.more_headers = {"Location": target}
    with pytest.raises(DownloadError, match="tiny: "):
        pull(replace(MANIFEST, files=MANIFEST.files[1:]))
    assert blobs() == [] or [path.stat().st_size for path in blobs()] == [0]


def test_a_hubs_words_cannot_steer_the_terminal(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    hub.more_headers = {"X-HF-Warning": "topic; \x1b]0;x\x07evil\x9b31m"}
    say_what_the_hub_says()
    pull(MANIFEST)
    told = [PrintableFormatter().format(record) for record in caplog.records]
    assert told == ["argus:  ]0;x evil 31m"]
    assert logging.getLogger("huggingface_hub").handlers == []  # else it says them too


@pytest.mark.parametrize(
    ("header", "value", "told"),
    [
        ("Retry-After", "3600", "takes no request for 3600 s, try again after that"),
        ("Retry-After", "9" * 20, "takes no request for 999999999 s"),
        ("Retry-After", "\xb2", "takes no request for \xb2 s"),  # no number, but a digit
        ("RateLimit", '"api";r=0;t=300', "takes no request for 300 s"),
        ("RateLimit", f'"api";r={"9" * 5000};t=1', "answer for config.json makes no sense"),
    ],
)
def test_a_hub_that_sends_us_away_for_long_is_not_waited_for(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, header: str, value: str, told: str
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail() if seconds else None)
    hub.status["config.json"], hub.more_headers = 429, {header: value}
    with pytest.raises(DownloadError, match=f"^tiny: the hub.* {told}"):
        pull(MANIFEST)


def test_a_hub_that_sends_us_away_for_a_moment_is_asked_again(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: hub.status.clear() if seconds else None)
    hub.status["config.json"], hub.more_headers = 429, {"Retry-After": "60"}
    pull(MANIFEST)
    assert "Waiting 61.0s" in caplog.text


def test_two_pulls_at_once(hub: Hub) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(pull, MANIFEST, progress=False) for _ in range(3)]
        assert {one.result().revision for one in found} == {COMMIT}
    assert len(hub.requests("GET")) == 3  # each file once; the weights come by a redirect
    assert all(path.is_symlink() for path in catalog.snapshot(MANIFEST).iterdir())


def test_whoever_loads_during_a_forced_pull_finds_the_files(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = pull(MANIFEST)
    replaced = Path.replace

    def see(self: Path, target: Path) -> Path:
        assert (found.path / WEIGHTS_FILE).read_bytes() == WEIGHTS
        return replaced(self, target)

    monkeypatch.setattr(Path, "replace", see)
    pull(MANIFEST, force=True)


def test_another_file_than_the_pinned_one_is_not_even_fetched(hub: Hub) -> None:
    pinned = replace(MANIFEST.files[1], sha256="0" * 64)
    with pytest.raises(ModelDamaged, match="the hub offers another model.safetensors"):
        pull(replace(MANIFEST, files=(pinned,)))
    assert hub.requests("GET") == []


def test_a_damaged_file_is_fetched_again(hub: Hub) -> None:
    found = pull(MANIFEST)
    altered = found.path / WEIGHTS_FILE
    altered.write_bytes(WEIGHTS[::-1])
    pull(MANIFEST)
    assert altered.read_bytes() == WEIGHTS
    altered.resolve().write_bytes(WEIGHTS[:-1])
    with pytest.raises(ModelDamaged, match=r"wrong size; run `argus models pull tiny`"):
        catalog.locate(MANIFEST)
    hub.log.clear()
    pull(MANIFEST)
    assert altered.read_bytes() == WEIGHTS
    assert not any(path.endswith("config.json") for path in hub.requests())


def test_force_fetches_everything_again(hub: Hub) -> None:
    pull(MANIFEST)
    hub.log.clear()
    pull(MANIFEST, force=True)
    assert len(hub.requests("GET")) == 3  # the weights come by a redirect


def test_without_links_there_is_one_copy(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "symlink", refuse)
    found = pull(MANIFEST)
    assert not (found.path / WEIGHTS_FILE).is_symlink()
    assert blobs() == []
    hub.log.clear()
    assert pull(MANIFEST) == found
    assert hub.log == []


def test_the_token_goes_to_the_hub_and_nowhere_else(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "secret"
    with pytest.raises(DownloadError, match=r"refuses access to \S+ \(401\): set HF_TOKEN"):
        pull(MANIFEST)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    hub.log.clear()
    pull(MANIFEST)
    for _, path, headers in hub.log:
        assert ("authorization" in headers) == (not path.startswith("/cdn/"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"repo": "owner/other"}, "the hub has no repository owner/other"),
        ({"revision": "e" * 40}, f"owner/tiny-model has no revision {'e' * 40}"),
        ({"files": (ModelFile(path="a.json"),)}, "owner/tiny-model has no file a.json"),
    ],
)
def test_what_the_hub_lacks(hub: Hub, change: dict[str, Any], message: str) -> None:
    with pytest.raises(DownloadError, match=re.escape(f"tiny: {message}")) as caught:
        pull(replace(MANIFEST, **change))
    assert "\n" not in str(caught.value)


def test_no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(catalog.hub_settings(), "HUGGINGFACE_CO_URL_TEMPLATE", template)
    with pytest.raises(DownloadError, match="tiny: no connection to the hub .*check the network"):
        pull(MANIFEST)


def test_a_hub_that_does_not_answer(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    hub.delay_s = 0.5
    patient = huggingface_hub.get_hf_file_metadata
    monkeypatch.setattr(
        huggingface_hub, "get_hf_file_metadata", lambda url: patient(url, timeout=0.1)
    )
    with pytest.raises(DownloadError, match="tiny: no connection to the hub .*timed out"):
        pull(MANIFEST)


def test_what_is_no_hub(hub: Hub) -> None:
    for nonsense in ({"etags": {"config.json": "../../x"}}, {"commit": "../../x"}):
        for name, value in nonsense.items():
            setattr(hub, name, value)
        with pytest.raises(DownloadError, match="isn't a hub: check HF_ENDPOINT"):
            pull(UNPINNED)


def test_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    pull(MANIFEST)
    monkeypatch.setattr(catalog.hub_settings(), "HF_HUB_OFFLINE", True)
    hub.log.clear()
    pull(MANIFEST)
    (catalog.snapshot(MANIFEST) / "config.json").unlink()
    with pytest.raises(DownloadError, match="tiny: config.json isn't on this machine.*--offline"):
        pull(MANIFEST)
    assert hub.log == []


def test_no_room(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    with pytest.raises(DownloadError, match=r"tiny: 1 MB needed in .*hub, 1 MB free: make room"):
        pull(MANIFEST)
    assert hub.log == []
    unknown = replace(MANIFEST, files=(ModelFile(path=WEIGHTS_FILE),))
    with pytest.raises(DownloadError, match="make room or set HF_HOME"):
        pull(unknown)
    assert hub.requests("GET") == []


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EFBIG, "the disk is full"),
        (errno.EROFS, ".*/blobs can't be written"),
    ],
)
def test_a_disk_that_refuses(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, code: int, message: str
) -> None:
    def refuse(self: Path, *_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(DownloadError, match=f"tiny: {message}"):
        pull(MANIFEST)


def test_the_environment_is_honoured_and_nothing_else_is_sent(hub: Hub, tmp_path: Path) -> None:
    hub.token = "secret"
    code = """if True:
        import logging
        from argus_cli.cli.stderr import say_what_the_hub_says
        say_what_the_hub_says()
        from argus_cli.zoo.download import pull
        from argus_cli.zoo.manifest import Manifest, ModelFile
        files = (ModelFile(path="config.json"),)
        print(pull(Manifest(name="tiny", summary="", licence="", parameters=1, memory_bytes=1,
            repo="owner/tiny-model", revision="main", files=files)).path)
        assert not logging.getLogger("huggingface_hub").handlers
    """
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "HF_HOME": str(tmp_path / "elsewhere"),
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": hub.token,
    }
    run = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert run.stderr == ""
    assert run.stdout.startswith(str(tmp_path / "elsewhere" / "hub"))
    assert not (tmp_path / "home").exists()
    assert {path.rpartition("/")[2] for path in hub.requests()} == {"config.json"}
