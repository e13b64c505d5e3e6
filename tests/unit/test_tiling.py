"""What --tiles means, in integers, with the sizes of SmolVLM-256M."""

import pytest

from argus_cli.smolvlm.config import PreprocessConfig
from argus_cli.smolvlm.tiling import plan_tiles

SMOLVLM = PreprocessConfig(tile=512, longest_edge=2048, split=True)


@pytest.mark.parametrize(
    ("size", "tiles", "grid", "count"),
    [
        ((386, 386), "full", (4, 4), 17),  # a small photo is blown up: what the models expect
        ((386, 386), "auto", (0, 0), 1),  # fits into one tile
        ((1, 1), "auto", (0, 0), 1),
        ((640, 480), "auto", (2, 2), 5),
        ((513, 100), "auto", (1, 2), 3),
        ((4000, 3000), "auto", (3, 4), 13),
        ((4000, 3000), "full", (3, 4), 13),
        ((4000, 3000), "17", (3, 4), 13),
        ((4000, 3000), "12", (3, 3), 10),
        ((4000, 3000), "5", (2, 2), 5),
        ((4000, 3000), "4", (0, 0), 1),
        ((4000, 3000), "1", (0, 0), 1),
        ((100, 5000), "5", (4, 1), 5),
        ((100, 5000), "2", (0, 0), 1),
    ],
)
def test_tiles(size: tuple[int, int], tiles: str, grid: tuple[int, int], count: int) -> None:
    plan = plan_tiles(size, SMOLVLM, tiles)
    assert (plan.rows, plan.cols) == grid
    assert plan.tiles == count


def test_one_tile_sees_what_the_reference_sees_unsplit() -> None:
    """--tiles 1 is the reference's do_image_splitting=False, not the split path's global tile."""
    unsplit = plan_tiles((640, 360), PreprocessConfig(512, 2048, split=False))
    assert plan_tiles((640, 360), SMOLVLM, 1) == unsplit
    assert unsplit.scaled == (2048, 1152) and unsplit.cut == (512, 512)


def test_a_model_that_does_not_split_never_does() -> None:
    glimpse = PreprocessConfig(tile=256, longest_edge=256, split=False)
    assert {plan_tiles((4000, 3000), glimpse, tiles).tiles for tiles in ("full", "auto", 9)} == {1}
