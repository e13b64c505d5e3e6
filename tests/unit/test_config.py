"""config.json in all the shapes it comes in, and what is refused."""

import copy
import json
from pathlib import Path

import pytest
from conftest import TINY

from argus_cli.errors import ModelDamaged
from argus_cli.smolvlm.config import parse_model, read_config


def changed(path: str, value: object) -> dict:
    """TINY with one key set (None deletes it)."""
    config = copy.deepcopy(TINY)
    *parents, key = path.split("/")
    place = config
    for parent in parents:
        place = place[parent]
    if value is None:
        del place[key]
    else:
        place[key] = value
    return config


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("model_type", "llava", "model_type 'llava'"),
        ("vision_config/hidden_act", "relu", "hidden_act"),
        ("text_config/attention_bias", True, "attention_bias"),
        ("text_config/rope_scaling", {"type": "linear"}, "rope_scaling"),
        ("text_config/rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4}, "yarn"),
        ("text_config/hidden_size", -3, "hidden_size is -3"),
        ("text_config/hidden_size", "wide", "hidden_size is 'wide'"),
        ("text_config/hidden_size", float("inf"), "hidden_size is inf"),
        ("vision_config/num_attention_heads", 5, "hidden_size 48 can't be divided by 5"),
        ("text_config/num_key_value_heads", 4, "num_attention_heads 6 can't be divided by 4"),
        ("scale_factor", 0, "scale_factor is 0"),
        ("vision_config/num_hidden_layers", 2.5, "num_hidden_layers is 2.5"),
        ("scale_factor", 3, "scale_factor 3 doesn't divide"),
    ],
)
def test_what_argus_cannot_honour_is_refused(path: str, value: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_model(changed(path, value))


@pytest.mark.parametrize(
    "path", ["image_token_id", "text_config", "text_config/vocab_size", "text_config/rope_theta"]
)
def test_a_missing_key_is_named(path: str) -> None:
    with pytest.raises(KeyError, match=path.split("/")[-1]):
        parse_model(changed(path, None))


def test_both_spellings_of_the_rotary_base() -> None:
    new = changed("text_config/rope_theta", None)
    new["text_config"]["rope_parameters"] = {"rope_theta": 1e5, "rope_type": "default"}
    assert parse_model(new) == parse_model(TINY)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", None, r"config\.json: missing"),
        ("config.json", "{", r"config\.json: unreadable"),
        ("config.json", "[]", r"config\.json: not a JSON object"),
        ("config.json", "[" * 100_000, r"config\.json: unreadable"),
        ("preprocessor_config.json", None, r"preprocessor_config\.json: missing"),
        ("preprocessor_config.json", "{}", r"preprocessor_config\.json: the key"),
        ("generation_config.json", "{}", r"generation_config\.json: the key 'eos_token_id'"),
    ],
)
def test_a_damaged_file_is_named(
    tiny_folder: Path, tmp_path: Path, name: str, content: str | None, reason: str
) -> None:
    for file in tiny_folder.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ModelDamaged, match=reason):
        read_config(tmp_path)


def test_tiles_of_another_size_than_the_tower(tiny_folder: Path, tmp_path: Path) -> None:
    for file in tiny_folder.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(changed("vision_config/image_size", 96)))
    with pytest.raises(ModelDamaged, match=r"tiles of 64 px, but .*image_size is 96"):
        read_config(tmp_path)
