"""The checkpoints' real shapes with seeded random weights: the reference and argus, side by side.

Slow (minutes) and large (10 GB for the reference in float32), so not part of the default run:
scripts/test -m slow tests/parity/test_full_shapes.py

The reference's own tokenizer and picture processing are covered by tests/golden; here it gets the
tiles and ids that argus makes. Tolerance 1e-4 of the largest value: float32 sums of 12,288 terms
over 42 layers in another order; measured are about 1e-6.
"""

import json
import lzma
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import draw
from typer.testing import CliRunner

import argus_cli
from argus_cli.cli.app import app
from argus_cli.smolvlm.prompt import STYLES, film_parts
from argus_cli.smolvlm.tiling import cut_tiles, plan_tiles

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
transformers = pytest.importorskip("transformers", reason="the reference, a development dependency")

GOLDEN = Path(__file__).parents[1] / "golden"
SIZES = ((512, 512), (1024, 257), (100, 5000))  # 17, 9 and 5 tiles
NEW_TOKENS = 32
CASES = {
    "SmolVLM-256M-Instruct": {},
    "SmolVLM2-500M-Video-Instruct": {},
    "SmolVLM2-2.2B-Instruct": {"vision_config": 3, "text_config": 3},  # so many layers of each
}


@pytest.fixture(scope="module", params=CASES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint saved by transformers, with the hub's other files beside it."""
    source = GOLDEN / "hub" / request.param
    raw = json.loads((source / "config.json").read_text())
    for part, layers in CASES[request.param].items():
        raw[part]["num_hidden_layers"] = layers
    name = "SmolVLM" if raw["model_type"] == "smolvlm" else "Idefics3"
    raw["text_config"].setdefault("num_attention_heads", 32)
    config = getattr(transformers, f"{name}Config")(**raw)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    folder = tmp_path_factory.mktemp(request.param)
    # Word vectors as wide as those of trained checkpoints (std 0.1), so that answers vary.
    torch.nn.init.normal_(model.model.text_model.embed_tokens.weight, std=0.1)
    model.save_pretrained(folder)
    for file in ("preprocessor_config.json", "generation_config.json"):
        (folder / file).write_bytes((source / file).read_bytes())
    tokenizer = lzma.decompress((GOLDEN / "tokenizer.json.xz").read_bytes())
    (folder / "tokenizer.json").write_bytes(tokenizer)
    return folder


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Iterator[torch.nn.Module]:
    yield transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def ours(folder: Path) -> argus_cli.Captioner:
    return argus_cli.load(folder, dtype="float32")


def deviation(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


def prepared(ours: argus_cli.Captioner, size: tuple[int, int]) -> tuple[Any, ...]:
    picture = draw(*size)
    grid = plan_tiles(size, ours.config.preprocess)
    tiles = torch.from_numpy(cut_tiles(picture, grid))
    ids = torch.tensor([ours.prompt_ids([grid, STYLES["caption"]])])
    return picture, tiles, ids, (tiles.permute(0, 3, 1, 2).float() / 127.5 - 1)[None]


@pytest.mark.parametrize("size", SIZES)
@torch.inference_mode()
def test_float32(
    theirs: torch.nn.Module, ours: argus_cli.Captioner, folder: Path, size: tuple[int, int],
    tmp_path: Path,
) -> None:  # fmt: skip
    picture, tiles, ids, pixels = prepared(ours, size)
    tower = theirs.model.vision_model(pixels[0]).last_hidden_state
    features = theirs.model.connector(tower)
    report = {
        "tower": deviation(ours.model.vision_model(tiles), tower),
        "connector": deviation(ours.model.encode_tiles(tiles), features),
    }
    del tower
    expected = theirs(input_ids=ids, pixel_values=pixels).logits
    report["logits"] = deviation(
        ours.model(ours.model.embed(ids, ours.model.encode_tiles(tiles))), expected
    )
    print(f"\n{folder.name} {size} {len(tiles)} tiles {report}")
    assert max(report.values()) < 1e-4

    tokens = theirs.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=pixels,
        max_new_tokens=NEW_TOKENS, do_sample=False,
    )[0, ids.shape[1] :].tolist()  # fmt: skip
    assert greedy(ours, tiles, ids) == tokens

    picture.save(tmp_path / "picture.png")
    words = f"caption {tmp_path / 'picture.png'} -m {folder} --tiles full --dtype float32"
    done = CliRunner().invoke(
        app, [*words.split(), "--max-new-tokens", str(NEW_TOKENS), "-f", "json"]
    )
    record = json.loads(done.stdout)
    answer = ours.tokenizer.decode(tokens).strip()
    print(f"{record['new_tokens']} tokens, {record['finish_reason']}: {record['caption']!r}")
    assert record["prompt_tokens"] == ids.shape[1] and record["tiles"] == len(tiles)
    assert record["caption"] == answer or (
        record["finish_reason"] == "repetition" and answer.startswith(record["caption"])
    )


def greedy(ours: argus_cli.Captioner, tiles: torch.Tensor, ids: torch.Tensor) -> list[int]:
    from argus_cli.generation import generate
    from argus_cli.smolvlm.cache import KVCache

    model = ours.model
    cache = KVCache(model.config.text, 1, ids.shape[1] + NEW_TOKENS, dtype=model.dtype)
    x = model.embed(ids, model.encode_tiles(tiles))
    tokens = []
    for step in generate(model, x, cache, argus_cli.Sampling(NEW_TOKENS)):
        tokens.append(step.token)
        if step.token in ours.config.eos_token_ids:
            break
    return tokens


@torch.inference_mode()
def test_film(theirs: torch.nn.Module, ours: argus_cli.Captioner) -> None:
    """A window of frames in SmolVLM2's film prompt: the same greedy tokens on the same frames."""
    if not ours.config.model.reads_video:
        pytest.skip("doesn't read films")
    times, size = [0.0, 1.0, 2.5, 61.0], (640, 360)
    grid = plan_tiles(size, replace(ours.config.preprocess, split=False))
    frames = [cut_tiles(draw(*size, seed), grid) for seed in range(len(times))]
    tiles = torch.from_numpy(np.concatenate(frames))
    ids = torch.tensor([ours.prompt_ids([*film_parts(times, 70.0, grid), "What happens?"])])
    pixels = (tiles.permute(0, 3, 1, 2).float() / 127.5 - 1)[None]
    tokens = theirs.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=pixels,
        max_new_tokens=NEW_TOKENS, do_sample=False,
    )[0, ids.shape[1] :].tolist()  # fmt: skip
    assert greedy(ours, tiles, ids) == tokens
    print(f"\nfilm of {len(times)} frames, {ids.shape[1]} prompt tokens: {tokens}")


@torch.inference_mode()
def test_bfloat16_features(ours: argus_cli.Captioner, folder: Path) -> None:
    _, tiles, *_ = prepared(ours, SIZES[2])
    exact = ours.model.encode_tiles(tiles)
    rounded = argus_cli.load(folder, dtype="bfloat16").model.encode_tiles(tiles).float()
    cosine = torch.nn.functional.cosine_similarity(exact, rounded, dim=-1)
    print(f"\n{folder.name} bfloat16 features: cosine at least {float(cosine.min()):.5f}")
    assert cosine.min() > 0.999
