"""config.json in all the shapes it comes in, and what is refused."""

import copy
import json
import math
import os
from pathlib import Path

import pytest
from conftest import TINY

from argus_cli.errors import ModelDamaged
from argus_cli.smolvlm.config import parse_calibration, parse_model, read_config, read_json


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


def stem(count: int = 1, **change: object) -> dict:
    block = {"repeats": 1, "kernel_size": 3, "stride": 2, "expand_ratio": 1, "out_channels": 8}
    return {"first_channels": 8, "last_channels": 8, "blocks": [block | change] * count}


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
        ("scale_factor", True, "scale_factor is True"),
        ("text_config/head_dim", 15, "head_dim 15 can't be divided by 2"),
        ("text_config/num_hidden_layers", 10**9, "num_hidden_layers is 1000000000, 256 at most"),
        ("vision_config/num_hidden_layers", 10**9, "num_hidden_layers is 1000000000"),
        ("text_config/hidden_size", 1e300, "hidden_size is 1e\\+300, 1048576 at most"),
        ("vision_config/image_size", 10**6, "image_size is 1000000, 4096 at most"),
        ("vision_config/image_size", 4096, "a tile of 16384 tokens, 4096 at most"),
        ("vision_config/stem", stem(repeats=10**9), "repeats is 1000000000, 64 at most"),
        ("vision_config/stem", stem(repeats="x"), "repeats is 'x'"),
        ("vision_config/stem", stem(65), "blocks is 65, 64 at most"),
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


def preprocessor(longest: object) -> str:
    sizes = {"max_image_size": {"longest_edge": 64}, "size": {"longest_edge": longest}}
    return json.dumps({"do_image_splitting": True, **sizes})


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
        ("generation_config.json", '{"eos_token_id": "x"}', "eos_token_id is 'x'"),
        ("preprocessor_config.json", preprocessor(10**5), "size is 100000, more than 16 tiles"),
        ("preprocessor_config.json", preprocessor("wide"), "size is 'wide'"),
        ("preprocessor_config.json", preprocessor(-64), "size is -64"),
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


def test_what_never_ends_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "device.json").symlink_to("/dev/zero")
    with open(tmp_path / "bomb.json", "wb") as file:
        file.truncate(2**40)
    for name in ("pipe", "device", "bomb"):
        with pytest.raises(ModelDamaged, match=rf"{name}\.json: unreadable \(no file of at most"):
            read_json(tmp_path / f"{name}.json")


def test_calibration_turns_a_mean_log_probability_into_that_of_being_right():
    calibration = parse_calibration({"slope": 2.0, "offset": 1.0})
    assert calibration is not None
    assert calibration.log_probability(-0.5) == pytest.approx(math.log(0.5))
    assert calibration.log_probability(-1000.0) == pytest.approx(-1999.0)  # exp() would overflow
    assert parse_calibration(None) is None


@pytest.mark.parametrize(
    "raw",
    [{"slope": 0, "offset": 1}, {"slope": 1, "offset": math.nan}, {"slope": 1, "offset": "x"}],
)
def test_a_calibration_that_means_nothing_is_refused(raw):
    with pytest.raises(ValueError, match="calibration"):
        parse_calibration(raw)
