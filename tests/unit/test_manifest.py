"""Manifests are read strictly, and the real ones are sound."""

import re
from pathlib import Path

import pytest

from argus_cli.errors import ModelDamaged
from argus_cli.zoo.manifest import (
    FileState,
    ModelFile,
    load_manifests,
    models_folder,
    read_manifest,
    sha256_of,
)

GOOD = """
name = "tiny"
repo = "owner/tiny-model"
revision = "main"
summary = "a test"
licence = "Apache-2.0"
parameters = 10
memory_bytes = 20

[[files]]
path = "config.json"
size = 12

[[files]]
path = "sub/model.safetensors"
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tiny" / "manifest.toml"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    return path


def test_a_good_manifest(tmp_path: Path) -> None:
    manifest = read_manifest(write(tmp_path, GOOD))
    assert manifest.name == "tiny"
    assert manifest.size_bytes == 12
    assert [file.path for file in manifest.files] == ["config.json", "sub/model.safetensors"]
    assert not manifest.bundled


def test_without_a_repo_it_is_bundled(tmp_path: Path) -> None:
    text = GOOD.replace('repo = "owner/tiny-model"', "").replace('"main"', '"1"')
    assert read_manifest(write(tmp_path, text)).bundled


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("parameters", "params", "params"),
        ('licence = "Apache-2.0"', "", "licence"),
        ("parameters = 10", 'parameters = "10"', "parameters"),
        ("size = 12", "size = 12\nmode = 7", "mode"),
        ("size = 12", 'sha256 = "12"', "sha256"),
        ("size = 12", 'size = "12"', "size"),
        ('"main"', '"v1"', "v1"),
        ('"owner/tiny-model"', '"../x"', "../x"),
        ('"owner/tiny-model"', '"tiny-model"', "owner/name"),
        ('name = "tiny"', 'name = "other"', "other"),
        ("[[files]]", "[[file]]", "file"),
        ("[[files]]", "[files]", ""),
        ("name =", "name", ""),
    ],
)
def test_a_bad_manifest_is_refused(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    path = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ModelDamaged, match=re.escape(str(path))) as caught:
        read_manifest(path)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "path",
    ["", ".", "..", "../x", "a/../../x", "/etc/x", "//x", r"a\b", r"..\x", "C:/x", "C:x", "a\0b"],
)
def test_a_path_must_stay_in_the_folder(path: str) -> None:
    with pytest.raises(ValueError, match="leaves the model's folder"):
        ModelFile(path=path)


def test_states_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    assert ModelFile(path="f").state_of(path) is FileState.MISSING
    path.write_bytes(b"")
    assert ModelFile(path="f").state_of(path) is FileState.SIZE
    path.write_bytes(b"abc")
    assert ModelFile(path="f", size=4).state_of(path) is FileState.SIZE
    assert ModelFile(path="f", size=3).state_of(path, deep=True) is FileState.OK
    other = ModelFile(path="f", sha256="0" * 64)
    assert other.state_of(path) is FileState.OK
    assert other.state_of(path, deep=True) is FileState.SHA256
    assert ModelFile(path="f", sha256=sha256_of(path)).state_of(path, deep=True) is FileState.OK


def test_the_real_manifests() -> None:
    folders = {path.parent.name for path in models_folder().glob("*/README.md")}
    manifests = load_manifests()
    assert set(manifests) == folders
    assert {"smolvlm-256m", "smolvlm2-2.2b"} <= set(manifests)
    for manifest in manifests.values():
        paths = [file.path for file in manifest.files]
        assert len(set(paths)) == len(paths)
        assert {"config.json", "preprocessor_config.json", "tokenizer.json"} <= set(paths)
        assert any(path.endswith(".safetensors") for path in paths)
        assert 0 < manifest.memory_bytes
        if not manifest.bundled:
            assert manifest.memory_bytes == 2 * manifest.parameters


def test_manifests_come_smallest_first() -> None:
    sizes = [manifest.parameters for manifest in load_manifests().values()]
    assert sizes == sorted(sizes)
