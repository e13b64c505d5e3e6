"""Loading is strict: whatever doesn't fit is an error that names file and tensor."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from pickle import dumps

import pytest
import torch
from safetensors.torch import load_file, save_file

from argus_cli.errors import ModelDamaged
from argus_cli.smolvlm import weights
from argus_cli.smolvlm.config import read_config
from argus_cli.smolvlm.model import SmolVLM
from argus_cli.smolvlm.weights import load_model

NORM = "model.text_model.norm.weight"
LARGE = "model.text_model.embed_tokens.weight"


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


def load(folder: Path, dtype: torch.dtype = torch.float32) -> SmolVLM:
    return load_model(folder, read_config(folder).model, dtype=dtype)


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    state = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(state)
    save_file(state, path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s.pop(NORM), r"1 tensors are missing: text_model\.norm\.weight"),
        (lambda s: s.update(extra=torch.ones(1)), "1 tensors are unknown: extra"),
        (
            lambda s: s.update({NORM: torch.ones(95)}),
            r"norm\.weight has shape \[95\], config\.json asks for \[96\]",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], object], reason: str
) -> None:
    rewrite(folder, change)
    with pytest.raises(ModelDamaged, match=reason):
        load(folder)


@pytest.mark.parametrize("keep", [0, 7, 500, -1])
def test_a_truncated_file_is_named(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelDamaged, match=r"model\.safetensors: damaged or truncated"):
        load(folder)


def test_a_pickle_is_not_read(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(ModelDamaged, match=r"missing; argus reads weights from safetensors alone"):
        load(folder)


class Trap:
    """What runs when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return pytest.fail, ("a pickle was read",)


@pytest.mark.parametrize("save", [torch.save, lambda trap, path: path.write_bytes(dumps(trap))])
def test_a_pickle_under_another_name_is_not_read(
    folder: Path, save: Callable[[object, Path], object]
) -> None:
    save(Trap(), folder / "model.safetensors")
    with pytest.raises(ModelDamaged, match=r"model\.safetensors: damaged or truncated"):
        load(folder)


def test_a_pipe_is_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(ModelDamaged, match=r"model\.safetensors: missing"):
        load(folder)


def test_sizes_that_no_machine_holds(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    block = dict.fromkeys(("kernel_size", "stride", "expand_ratio", "out_channels"), 2**20)
    config["vision_config"]["stem"] = {
        "first_channels": 2**20, "last_channels": 1, "blocks": [block | {"repeats": 1}],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelDamaged, match=r"config\.json: .*overflow"):
        load(folder)


@pytest.mark.parametrize("become", ["gone", "another"])
def test_weights_that_change_while_they_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, become: str
) -> None:
    path = folder / "model.safetensors"
    compare = weights._compare_names

    def change(*names: object) -> None:
        compare(*names)  # type: ignore[arg-type]
        if become == "gone":
            path.unlink()
        else:
            rewrite(folder, lambda state: state.update({LARGE: torch.ones(1)}))

    monkeypatch.setattr(weights, "_compare_names", change)
    monkeypatch.setattr(weights, "_LARGE", 0)
    with pytest.raises(ModelDamaged, match=r"model\.safetensors: damaged|were replaced"):
        load(folder)


def split_in_shards(folder: Path) -> dict[str, str]:
    state = load_file(folder / "model.safetensors")
    names = sorted(state)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: state[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return weight_map


def test_shards_equal_one_file(folder: Path) -> None:
    whole = load(folder).state_dict()
    split_in_shards(folder)
    shards = load(folder).state_dict()
    assert whole.keys() == shards.keys()
    assert all(torch.equal(whole[name], shards[name]) for name in whole)


def test_a_missing_shard_is_named(folder: Path) -> None:
    split_in_shards(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelDamaged, match=r"model-00002-of-00002\.safetensors: missing"):
        load(folder)


@pytest.mark.parametrize(
    "weight_map",
    [
        *({NORM: name} for name in (
            "../elsewhere.safetensors", "/elsewhere.safetensors", "..\\elsewhere.safetensors", "..",
            "x\0.safetensors", "\u202ex.safetensors", "pytorch_model.bin", 5, {}, None,
        )),
        {}, [], "x",
    ],
)  # fmt: skip
def test_a_shard_outside_the_folder_is_refused(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")
    index = {"weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelDamaged, match="doesn't list plain file names"):
        load(folder)


def test_weights_of_the_wanted_type_stay_in_the_mapped_file(folder: Path) -> None:
    kept, cast = load(folder), load(folder, torch.bfloat16)
    path = str(folder / "model.safetensors")
    assert kept.dtype == torch.float32 and cast.dtype == torch.bfloat16
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert path in maps.read_text()
        del kept
        assert path not in maps.read_text()


def test_tied_embeddings_are_one_tensor(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    rewrite(folder, lambda state: state.pop("lm_head.weight"))
    model = load(folder)
    assert model.lm_head.weight.data_ptr() == model.text_model.embed_tokens.weight.data_ptr()
