"""Tile plans and pixels against transformers' PIL processor on sizes of all kinds."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import draw

from argus_cli.smolvlm.config import PreprocessConfig
from argus_cli.smolvlm.tiling import cut_tiles, plan_tiles

pytest.importorskip("transformers", reason="the reference, a development dependency")

# Small tiles, so that hundreds of pictures take seconds; the ratios are those of the checkpoints.
SMALL = PreprocessConfig(tile=16, longest_edge=64, split=True)


def reference(picture: Any, config: PreprocessConfig) -> tuple[int, int, np.ndarray]:
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    processor = Idefics3ImageProcessorPil(
        do_image_splitting=config.split, size={"longest_edge": config.longest_edge},
        max_image_size={"longest_edge": config.tile},
        image_mean=[0.5] * 3, image_std=[0.5] * 3, resample=1,
    )  # fmt: skip
    out = processor([[picture]], return_tensors="np", return_row_col_info=True)
    return out["rows"][0][0], out["cols"][0][0], out["pixel_values"][0]


def sizes() -> list[tuple[int, int]]:
    rng = random.Random(0)
    odd = [(1, 1), (1, 90), (90, 1), (16, 16), (64, 64), (65, 64), (3, 1000), (17, 33), (64, 16)]
    return odd + [(rng.randint(1, 200), rng.randint(1, 200)) for _ in range(120)]


@pytest.mark.parametrize("split", [True, False])
def test_pixels_equal_the_reference(split: bool) -> None:
    config = replace(SMALL, split=split)
    for size in sizes():
        picture = draw(*size)
        grid = plan_tiles(size, config)
        rows, cols, pixels = reference(picture, config)
        assert (grid.rows, grid.cols) == (rows, cols), size
        ours = cut_tiles(picture, grid).transpose(0, 3, 1, 2).astype(np.float32)
        assert np.array_equal(ours / np.float32(127.5) - np.float32(1), pixels), size


def test_the_cap_of_4096_pixels() -> None:
    config = PreprocessConfig(tile=512, longest_edge=5120, split=True)
    for size in ((1000, 37), (37, 1000)):
        grid = plan_tiles(size, config)
        rows, cols, _ = reference(draw(*size), config)
        assert (grid.rows, grid.cols) == (rows, cols)
        assert max(grid.scaled) == 4096
