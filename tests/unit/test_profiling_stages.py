"""Marks to stages: what is named adds up to the whole, whatever form the modules take."""

from itertools import count

import pytest
import torch
from conftest import TINY, random_model

from argus_cli.profiling.stages import DECODER, TOWER, Mark, Rules, Trace, traced
from argus_cli.smolvlm.cache import KVCache
from argus_cli.smolvlm.config import parse_model
from argus_cli.smolvlm.kernels import specialise
from argus_cli.smolvlm.model import SmolVLM

LAYER = "vision_model.encoder.layers.3"
VISION = {
    "normalise", "patch embedding", "LN1", "qkv", "attention", "out", "residual", "LN2", "fc1",
    "activation", "fc2", "post-LN", "pixel shuffle", "projection",
}  # fmt: skip


@pytest.fixture(params=["plain", "fast"])
def model(request: pytest.FixtureRequest) -> SmolVLM:
    model = random_model(parse_model(TINY))
    return specialise(model) if request.param == "fast" else model


def ticks():  # type: ignore[no-untyped-def]
    """A clock that goes on by a second each time it is looked at."""
    return count(1.0).__next__


@torch.inference_mode()
def test_every_stage_of_the_tower_is_named(model: SmolVLM) -> None:
    # Three that differ, as equal ones cost one; a CPU takes them one by one.
    tiles = torch.randint(0, 256, (3, 64, 64, 3), dtype=torch.uint8)
    with traced(model, TOWER, ticks()) as trace:
        model.encode_tiles(tiles)
    stages = trace.stages()
    assert set(stages) - {None} == VISION
    assert sum(stages.values()) == trace.total == len(trace.marks) - 1
    assert sum(mark.path == "vision_model" for mark in trace.marks) == 3 * 2
    assert {layer for _, layer in trace.laps()} == {None, 0, 1}


@torch.inference_mode()
def test_every_stage_of_the_decoder_is_named(model: SmolVLM) -> None:
    x = model.embed(torch.ones(1, 7, dtype=torch.long))
    with traced(model, DECODER, ticks()) as trace:
        model.next_logits(x, KVCache(model.config.text, 1, 8, dtype=torch.float32))
    stages = trace.stages()
    assert set(stages) - {None} == {f"prefill: {part}" for part in ("attention", "MLP", "head")}
    assert sum(stages.values()) == trace.total


@torch.inference_mode()
def test_tracing_changes_nothing_and_leaves_nothing(model: SmolVLM) -> None:
    tiles = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)
    with traced(model, TOWER, ticks()) as trace:
        inside = model.encode_tiles(tiles)
    marks = len(trace.marks)
    assert torch.equal(model.encode_tiles(tiles), inside)
    assert len(trace.marks) == marks


def between(before: tuple[str, bool], after: tuple[str, bool], rules: Rules = TOWER) -> str | None:
    """The stage of the one second between two marks."""
    ((stage, _),) = Trace(rules, [Mark(*before, 1.0), Mark(*after, 2.0)]).laps()
    return stage


@pytest.mark.parametrize(
    ("before", "after", "stage"),
    [
        (("mlp.fc1", False), ("mlp.fc2", True), "activation"),
        (("mlp.fc2", False), ("mlp.fc1", True), "residual"),  # the next block of rows
        (("mlp", True), ("mlp", False), "MLP"),  # one fused call
        (("self_attn", True), ("self_attn", False), "attention block"),
        (("self_attn.qkv_proj", True), ("self_attn.qkv_proj", False), "qkv"),
        (("self_attn.q_proj", False), ("self_attn.k_proj", True), "attention"),
        (("layer_norm1", False), ("self_attn", True), "qkv"),
        (("self_attn", True), ("self_attn.q_proj", True), "qkv"),
        (("gate", True), ("gate", False), None),
        (("", True), ("gate", True), None),
    ],
)
def test_gaps(before: tuple[str, bool], after: tuple[str, bool], stage: str | None) -> None:
    (one, begins), (other, goes_on) = before, after
    one, other = (f"{LAYER}.{path}" if path else path for path in (one, other))
    assert between((one, begins), (other, goes_on)) == stage


def test_all_below_a_stem_is_patch_embedding() -> None:
    stem = "vision_model.embeddings.patch_embedding"
    assert between((f"{stem}.blocks.1.expand", False), (f"{stem}.last", True)) == "patch embedding"


def test_layers_are_told_apart() -> None:
    marks = [Mark(f"layers.{n}.layer_norm1", b, n + (not b) / 4) for n in (0, 1) for b in (1, 0)]
    laps = Trace(TOWER, marks).laps()
    assert (laps["LN1", 0], laps["qkv", 0], laps["LN1", 1]) == (0.25, 0.75, 0.25)
