"""The picture that is profiled: the user's own, or one drawn so that it makes N tiles."""

from dataclasses import dataclass
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from argus_cli.media.images import ImageSource, open_image
from argus_cli.schema import TileGrid
from argus_cli.smolvlm.config import PreprocessConfig
from argus_cli.smolvlm.tiling import plan_tiles


@dataclass(frozen=True)
class Picture:
    """Something that holds a picture, and how it is tiled."""

    source: ImageSource
    grid: TileGrid
    drawn: bool

    def told_apart(self, tiles: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A drawn picture's tiles all differ, since equal ones would cost the tower one."""
        if self.drawn:
            tiles[:, 0, 0, 0] = np.arange(len(tiles))
        return tiles


def choose_picture(
    image: ImageSource | None, tiles: int | None, config: PreprocessConfig
) -> Picture:
    """One's own, tiled as for captioning with at most ``tiles`` tiles, or one of exactly so many.

    Raises ImageError.
    """
    if image is None:
        grid = grid_of(tiles or 1, config.tile)
        return Picture(draw(grid), grid, drawn=True)
    return Picture(image, plan_tiles(open_image(image).size, config, tiles or "full"), drawn=False)


def grid_of(tiles: int, side: int) -> TileGrid:
    """The most square grid that makes exactly ``tiles`` tiles, the global one included."""
    cells = tiles - 1
    rows = max((n for n in range(1, int(cells**0.5) + 1) if cells % n == 0), default=0)
    cols = cells // rows if rows else 0
    cut = (max(cols, 1) * side, max(rows, 1) * side)
    return TileGrid(rows, cols, side, scaled=cut, cut=cut)


def draw(grid: TileGrid) -> bytes:
    """A JPEG, half as large again as the grid in both directions, with detail at several scales."""
    width, height = (edge * 3 // 2 for edge in grid.cut)
    random = np.random.default_rng(0)
    pixels = np.full((height, width, 3), 128, np.float32)
    for cells in (4, 16, 64, 256):
        noise = random.integers(0, 256, (cells, cells, 3), dtype=np.uint8)
        layer = Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)
        pixels += (np.asarray(layer, np.float32) - 128) / cells**0.5
    file = BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "jpeg", quality=90)
    return file.getvalue()
