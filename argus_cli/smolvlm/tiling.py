"""Which tiles a picture is cut into, and the cutting. Plans are integers; pixels follow the plan.

Equal to transformers' Idefics3ImageProcessorPil bit for bit (its sizes truncate, then round up to
even; every resize is Pillow's Lanczos on bytes).

N tiles, T pixels per tile side. Sizes are (width, height).
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from argus_cli.schema import TileGrid
from argus_cli.smolvlm.config import PreprocessConfig

_LONGEST_EVER = 4096  # the reference caps stage 1 here, whatever size.longest_edge says


def plan_tiles(
    size: tuple[int, int], config: PreprocessConfig, tiles: str | int = "full"
) -> TileGrid:
    """The grid for a picture of ``size``.

    "full" always scales to the checkpoint's longest edge, as the models were trained. "auto" does
    so only as far as the picture's own longest edge, rounded up to whole tiles. A number takes the
    largest such grid with at most that many tiles, the global one included; a single tile is what
    the reference makes without splitting.
    """
    if not config.split:
        return _unsplit(size, config)
    if tiles == "full":
        return _split(size, config)
    steps = range(config.longest_edge, 0, -config.tile)
    if tiles == "auto":
        own = math.ceil(max(size) / config.tile) * config.tile
        return _split(size, replace(config, longest_edge=min(config.longest_edge, own)))
    plans = (_split(size, replace(config, longest_edge=edge)) for edge in steps)
    small = (plan for plan in plans if plan.rows and plan.tiles <= int(tiles))
    return next(small, _unsplit(size, config))


def _unsplit(size: tuple[int, int], config: PreprocessConfig) -> TileGrid:
    tile = (config.tile, config.tile)
    return TileGrid(0, 0, config.tile, scaled=_scale_longest(size, config.longest_edge), cut=tile)


def _split(size: tuple[int, int], config: PreprocessConfig) -> TileGrid:
    scaled = _scale_longest(size, config.longest_edge)
    cut = _whole_tiles(scaled, config.tile)
    rows, cols = cut[1] // config.tile, cut[0] // config.tile
    if rows * cols == 1:  # fits into one tile: no separate global one
        rows = cols = 0
    return TileGrid(rows, cols, config.tile, scaled=scaled, cut=cut)


def _scale_longest(size: tuple[int, int], longest: int) -> tuple[int, int]:
    """Stage 1: the longest edge becomes ``longest``, the other follows, made even."""
    width, height = size
    aspect = width / height
    if width >= height:
        width, height = longest, int(longest / aspect)
        height += height % 2
    else:
        width, height = int(longest * aspect), longest
        width += width % 2
    width, height = max(width, 1), max(height, 1)
    if max(width, height) > _LONGEST_EVER:
        aspect = width / height
        if width >= height:
            width, height = _LONGEST_EVER, int(_LONGEST_EVER / aspect)
        else:
            width, height = int(_LONGEST_EVER * aspect), _LONGEST_EVER
    return max(width, 1), max(height, 1)


def _whole_tiles(size: tuple[int, int], tile: int) -> tuple[int, int]:
    """Stage 2: both edges become whole tiles; the aspect is not kept."""
    width, height = size
    aspect = width / height
    if width >= height:
        width = math.ceil(width / tile) * tile
        height = math.ceil(int(width / aspect) / tile) * tile
    else:
        height = math.ceil(height / tile) * tile
        width = math.ceil(int(height * aspect) / tile) * tile
    return width, height


def cut_tiles(picture: Image.Image, grid: TileGrid) -> NDArray[np.uint8]:
    """RGB picture -> uint8 [N, T, T, 3], row by row, the global tile last."""
    side = grid.tile
    tiles = np.empty((grid.tiles, side, side, 3), np.uint8)
    whole = _resize(_resize(picture, grid.scaled), grid.cut)
    cells = np.asarray(whole).reshape(-1, side, whole.width // side, side, 3).swapaxes(1, 2)
    if grid.rows:
        tiles[:-1].reshape(cells.shape)[:] = cells
    tiles[-1] = np.asarray(_resize(whole, (side, side)))
    return tiles


def _resize(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    return picture if picture.size == size else picture.resize(size, Image.Resampling.LANCZOS)
