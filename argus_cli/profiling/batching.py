"""Experiment 1: does putting several tiles into one matrix product help?"""

import torch.nn.functional as F

from argus_cli.profiling.experiment import Bench, Result, Row, small_model

_TILES = (1, 2, 4, 8, 17)


def batching(bench: Bench) -> Result:
    """Each of the tower's four linears over more and more tiles at once."""
    vision = bench.config.vision
    width, hidden, patches = vision.hidden_size, vision.intermediate_size, vision.grid**2
    rows: list[Row] = []
    alone = together = 0.0  # seconds a tile, over the four products
    for name, inputs, outputs in (
        ("qkv", width, 3 * width), ("fc1", width, hidden),
        ("fc2", hidden, width), ("out", width, width),
    ):  # fmt: skip
        weight = bench.noise(outputs, inputs, scale=0.02)
        seconds: dict[int, float] = {}
        for tiles in [n for n in _TILES if n <= bench.tiles]:
            x = bench.noise(tiles * patches, inputs)
            sample = bench.time(lambda x=x, weight=weight: F.linear(x, weight))[1]  # type: ignore[misc]
            seconds[tiles] = sample.fastest
            rows.append({
                "linear": f"{name} {inputs}->{outputs}", "tiles": tiles,
                "rows": tiles * patches, "ms": 1e3 * sample.fastest,
                "gflop_per_s": 2e-9 * tiles * patches * inputs * outputs / sample.fastest,
                "relative": seconds[1] * tiles / sample.fastest,
            })  # fmt: skip
        alone += seconds[1]
        together += min(s / tiles for tiles, s in seconds.items())
    return Result("batching: tiles in one matrix product", rows, [_meaning(bench, alone, together)])


def _meaning(bench: Bench, alone: float, together: float) -> str:
    """The most that batching can win, and the share of a layer that it applies to."""
    vision = bench.config.vision
    layer = small_model(bench, fast=False).vision_model.encoder.layers[0]
    x = bench.noise(1, vision.grid**2, vision.hidden_size)
    whole = bench.time(lambda: layer(x))[1].fastest
    share, won = alone / whole, 1 - together / alone
    return (
        f"batching can save at most {won:.0%} of the four products, which are {share:.0%} of a "
        f"layer ({1e3 * whole:.1f} ms a tile): at most {share * won:.0%} of it"
    )
