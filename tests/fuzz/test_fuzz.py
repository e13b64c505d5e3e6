"""Every door takes mutations of valid files, and what has broken it before. See doors.py.

The long way, guided by coverage: python tests/fuzz DOOR --seconds N.
"""

import resource
from functools import cache
from pathlib import Path
from random import Random

import pytest
from doors import DOORS, MEMORY_BYTES, knock
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mutations import swap_token

REGRESSIONS = sorted((Path(__file__).parent / "regressions").glob("*/*.bin"))
EXAMPLES = {"film": 60, "picture": 300}


@cache
def seeds(door: str) -> list[bytes]:
    return [*DOORS[door].seeds()]


@st.composite
def mutated(draw: st.DrawFn, door: str) -> bytes:
    """A valid file with a few tokens swapped, or bytes changed, cut out, doubled or put in."""
    data = bytearray(draw(st.sampled_from(seeds(door))))
    if DOORS[door].is_text and draw(st.booleans()):
        for _ in range(draw(st.integers(1, 3))):
            data[:] = swap_token(bytes(data), Random(draw(st.integers(0, 1 << 16))))
        return bytes(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.sampled_from((1, 1, 2, 4, 16, 1000)))
        piece = draw(st.one_of(st.binary(max_size=4), st.just(bytes(data[at : at + length]) * 2)))
        data[at : at + draw(st.sampled_from((0, len(piece), length)))] = piece
    return bytes(data)


@pytest.mark.parametrize("door", DOORS)
def test_a_door_keeps_its_promises(door: str) -> None:
    @settings(
        max_examples=EXAMPLES.get(door, 150), derandomize=True, database=None, deadline=None,
        phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(mutated(door))
    def check(data: bytes) -> None:
        knock(DOORS[door], data)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check()
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kb << 10 < MEMORY_BYTES


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_broke_it_once_does_so_no_more(path: Path) -> None:
    knock(DOORS[path.parent.name], path.read_bytes())
