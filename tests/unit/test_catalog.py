"""Names and paths become folders; what is missing or damaged is named with the way out."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hub_server import COMMIT, git_hash, sha256

from argus_cli.errors import ModelDamaged, ModelError, ModelMissing, UsageError
from argus_cli.zoo import catalog
from argus_cli.zoo.catalog import Presence
from argus_cli.zoo.manifest import FileState, Manifest, ModelFile

FILES = {"config.json": b"{}", "tokenizer.json": b"[]", "model.safetensors": b"weights"}
BIG = Manifest(
    name="smolvlm2-500m",
    summary="",
    licence="Apache-2.0",
    parameters=3,
    memory_bytes=6,
    repo="owner/big",
    revision=COMMIT,
    files=(
        ModelFile(path="config.json", size=2, sha256=sha256(b"{}")),
        ModelFile(path="tokenizer.json"),
        ModelFile(path="model.safetensors", size=7),
    ),
)
SMALL = replace(BIG, name="smolvlm-256m", repo="owner/small", revision="main", parameters=2)
GLIMPSE = replace(BIG, name="glimpse", repo=None, revision="1", parameters=1)


@pytest.fixture(autouse=True)
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three models: glimpse is bundled, the cache is empty, nothing is named."""
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.delenv("ARGUS_MODEL", raising=False)
    monkeypatch.setattr(catalog.hub_settings(), "HF_HUB_CACHE", str(tmp_path / "hub"))
    known = {manifest.name: manifest for manifest in (GLIMPSE, SMALL, BIG)}
    monkeypatch.setattr(catalog, "load_manifests", lambda: known)
    monkeypatch.setattr(catalog, "models_folder", lambda: tmp_path / "models")
    for name, content in FILES.items():
        path = tmp_path / "models" / "glimpse" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def cache(manifest: Manifest, *names: str) -> Path:
    """Put files into the cache as huggingface_hub does; return the snapshot's folder."""
    repo = catalog.repo_folder(manifest)
    folder = repo / "snapshots" / COMMIT
    for sub in (folder, repo / "blobs", repo / "refs"):
        sub.mkdir(parents=True, exist_ok=True)
    (repo / "refs" / "main").write_text(COMMIT)
    for name in names or FILES:
        digest = sha256 if name.endswith(".safetensors") else git_hash
        blob = repo / "blobs" / digest(FILES[name])
        blob.write_bytes(FILES[name])
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(f"../../blobs/{blob.name}")
    return folder


def test_the_bundled_model() -> None:
    found = catalog.find("glimpse")
    assert (found.path.name, found.revision, found.manifest) == ("glimpse", "1", GLIMPSE)
    assert catalog.status(GLIMPSE) == catalog.Status(Presence.BUNDLED, 11)


@pytest.mark.parametrize("manifest", [BIG, SMALL], ids=["pinned", "main"])
def test_a_model_in_the_cache(manifest: Manifest) -> None:
    assert catalog.status(manifest) == catalog.Status(Presence.ABSENT, 0)
    folder = cache(manifest)
    expected = catalog.ModelFolder(manifest.name, folder, COMMIT, manifest)
    assert catalog.find(manifest.name) == catalog.find(str(manifest.repo)) == expected
    assert catalog.status(manifest) == catalog.Status(Presence.COMPLETE, 11)


def test_a_model_that_is_not_here() -> None:
    with pytest.raises(ModelMissing, match="smolvlm-256m isn't on this machine: run `argus models"):
        catalog.find("smolvlm-256m")


def test_an_incomplete_model() -> None:
    folder = cache(BIG, "config.json", "tokenizer.json")
    part = folder.parents[1] / "blobs" / f"{'a' * 64}.incomplete"
    part.write_bytes(b"wei")
    assert catalog.status(BIG) == catalog.Status(Presence.PARTIAL, 7)
    with pytest.raises(ModelDamaged, match=r"model.safetensors: missing; run `argus models pull"):
        catalog.find(BIG.name)


def test_a_truncated_file() -> None:
    weights = cache(BIG) / "model.safetensors"
    weights.write_bytes(b"wei")
    assert catalog.status(BIG).presence is Presence.PARTIAL
    with pytest.raises(ModelDamaged, match=r"model.safetensors: wrong size; run `argus models"):
        catalog.find(BIG.name)


def test_a_damaged_bundled_model() -> None:
    (catalog.snapshot(GLIMPSE) / "tokenizer.json").unlink()
    assert catalog.status(GLIMPSE).presence is Presence.PARTIAL
    with pytest.raises(ModelDamaged, match="tokenizer.json: missing; reinstall argus"):
        catalog.find("glimpse")


def test_an_unknown_name_gets_the_known_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelMissing) as caught:
        catalog.find("SmolVLM-265M")
    message = str(caught.value)
    assert "did you mean smolvlm-256m?" in message
    assert "glimpse, smolvlm-256m, smolvlm2-500m" in message
    assert "argus models pull NAME" in message
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blip").mkdir()
    with pytest.raises(ModelMissing, match="no model is called blip: .*; the folder is -m ./blip"):
        catalog.find("blip")


@pytest.mark.parametrize("name", ["", " ", "x y", "\x1b[1m", "\udcff", "a\0", "'", "x" * 999, "./"])
def test_an_odd_name_is_told_as_what_it_is(name: str) -> None:
    shown = name if name in ("x" * 999, "./") else repr(name)
    with pytest.raises(ModelMissing) as caught:
        catalog.named(name)
    assert str(caught.value).startswith(f"no model is called {shown}: there are glimpse, ")
    assert "-m" not in str(caught.value) and str(caught.value).isprintable()


def test_a_folder_given_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    mine = tmp_path / "mine"
    for path in ("./mine", "~/mine", str(mine)):
        with pytest.raises(ModelMissing, match="mine: no such folder"):
            catalog.find(path)
    mine.mkdir()
    with pytest.raises(ModelDamaged, match=r"mine: no config.json"):
        catalog.find("./mine")
    (mine / "config.json").write_text("{}")
    for path in ("./mine", "~/mine", "mine/", str(mine)):
        assert catalog.find(path) == catalog.ModelFolder("mine", mine, "local")


def test_a_snapshot_given_by_path_keeps_its_commit() -> None:
    assert catalog.find(str(cache(BIG))).revision == COMMIT


def test_which_model_when_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def default() -> str:
        return catalog.default_model()[0].name

    assert default() == "glimpse"
    cache(SMALL)
    assert default() == "smolvlm-256m"
    cache(BIG, "config.json")
    assert default() == "smolvlm-256m"
    cache(BIG)
    assert default() == "smolvlm2-500m"
    monkeypatch.setenv("ARGUS_MODEL", "glimpse")
    found, reason = catalog.default_model()
    assert (found.name, reason) == ("glimpse", "named by ARGUS_MODEL")
    monkeypatch.setenv("ARGUS_MODEL", "gone")
    with pytest.raises(ModelMissing, match="gone"):
        catalog.default_model()


def test_verify() -> None:
    folder = cache(BIG)
    assert set(catalog.verify(BIG).values()) == {FileState.OK}
    (folder / "config.json").write_bytes(b"[]")
    (folder / "tokenizer.json").unlink()
    (folder / "model.safetensors").write_bytes(b"wEights")
    assert catalog.verify(BIG) == {
        "config.json": FileState.SHA256,
        "tokenizer.json": FileState.MISSING,
        "model.safetensors": FileState.SHA256,  # by the name that the hub gave the blob
    }
    (folder / "model.safetensors").write_bytes(b"wei")
    assert catalog.verify(BIG)["model.safetensors"] is FileState.SIZE


def test_remove_deletes_that_repository_alone() -> None:
    cache(BIG)
    cache(SMALL)
    assert catalog.remove(BIG) == 11 + len(COMMIT)
    assert not catalog.repo_folder(BIG).exists()
    assert catalog.find(SMALL.name)
    with pytest.raises(ModelMissing, match="nothing to remove"):
        catalog.remove(BIG)
    with pytest.raises(UsageError, match="glimpse is part of argus"):
        catalog.remove(GLIMPSE)


def test_remove_takes_an_unfinished_download_along() -> None:
    part = catalog.repo_folder(BIG) / "blobs" / "ab.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"wei")
    assert catalog.status(BIG) == catalog.Status(Presence.PARTIAL, 3)
    assert catalog.remove(BIG) == 3
    assert catalog.status(BIG) == catalog.Status(Presence.ABSENT, 0)


def test_remove_says_when_it_can_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    folder = cache(BIG)
    monkeypatch.setattr("shutil.rmtree", refuse)
    with pytest.raises(ModelError, match="can't be removed: Permission denied"):
        catalog.remove(BIG)
    assert folder.is_dir()


def test_looking_for_a_model_imports_next_to_nothing(tmp_path: Path) -> None:
    code = """if True:
        import os, sys
        from contextlib import suppress
        from argus_cli.errors import ModelError
        from argus_cli.zoo import catalog

        def loaded():
            return sorted(name for name in sys.modules if name.startswith("huggingface_hub"))

        for named in ("glimpse", "./nowhere"):
            os.environ["ARGUS_MODEL"] = named
            with suppress(ModelError):
                catalog.default_model()
        assert loaded() == [], loaded()
        del os.environ["ARGUS_MODEL"]
        with suppress(ModelError):
            catalog.default_model()
        assert loaded() == ["huggingface_hub", "huggingface_hub.constants"], loaded()
        assert not {"torch", "httpx", "numpy"} & set(sys.modules)
        print(catalog.hub_settings().HF_HUB_CACHE)
    """
    environ = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    assert run.stderr == ""
    assert run.stdout.strip() == str(tmp_path / "xdg" / "huggingface" / "hub")


@pytest.mark.parametrize("left", [b"", b"\xff\xfe", b"../../../elsewhere", b"\0" * 40])
def test_a_reference_that_a_crash_has_left_is_none(left: bytes) -> None:
    cache(SMALL)
    reference = catalog.repo_folder(SMALL) / "refs" / "main"
    reference.write_bytes(left)
    assert catalog.status(SMALL).presence is Presence.ABSENT
    with pytest.raises(ModelMissing, match="argus models pull smolvlm-256m"):
        catalog.locate(SMALL)


def test_a_file_that_another_process_moves_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cache(BIG)
    state_of = ModelFile.state_of

    def move(self: ModelFile, path: Path, **more: bool) -> FileState:
        state = state_of(self, path, **more)
        if self.path == "config.json":
            path.unlink()
        return state

    monkeypatch.setattr(ModelFile, "state_of", move)
    assert catalog.status(BIG).bytes_on_disk == len(b"[]") + len(b"weights")
    assert not (folder / "config.json").exists()


def test_a_home_that_nobody_has() -> None:
    with pytest.raises(ModelMissing, match="~nobody-at-all/model: no such folder"):
        catalog.find("~nobody-at-all/model")
