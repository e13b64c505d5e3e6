"""Where a film cuts from one scene to the next, by how much each frame differs from the one before.

Knows nothing of what the frames show. Dissolves and fades go unseen: no two frames differ by much.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from statistics import median

import numpy as np

from argus_cli.media.reels import opened
from argus_cli.media.shots import Shot
from argus_cli.media.videos import FilmSource

SIZE = (32, 18)  # of the grey frames compared
LEAST_CHANGE = 8.0  # grey levels of 255, averaged over the frame, that a cut changes at least
OUTSTANDING = 2.5  # and this many times what is usual just before and just after
JUST_S = 0.4


def scene_cuts(
    source: FilmSource, *, start: float = 0.0, end: float = inf, shortest_s: float = 0.5
) -> list[float]:
    """The times between start and end at which a new scene appears, in one pass over every frame.

    No two are closer than ``shortest_s``. Raises VideoError.
    """
    with opened(source) as reel:
        near = reel.shots_near(start) if start > 0 and reel.can_jump else None
        changes = list(_changes(near or reel.shots(), end))
    return [time for time in find_cuts(changes, shortest_s) if time >= start]


def find_cuts(changes: Sequence[tuple[float, float]], shortest_s: float) -> Iterator[float]:
    """The times of those (time, change) pairs whose change stands out from what is around it."""
    times, sizes = [time for time, _ in changes], [size for _, size in changes]
    latest = -inf
    for number, (time, change) in enumerate(changes):
        before = sizes[bisect_left(times, time - JUST_S) : number]
        after = sizes[number + 1 : bisect_right(times, time + JUST_S)]
        usual = max(median(before or [0.0]), median(after or [0.0]))
        if change >= max(LEAST_CHANGE, OUTSTANDING * usual) and time - latest >= shortest_s:
            yield time
            latest = time


def _changes(shots: Iterator[Shot], end: float) -> Iterator[tuple[float, float]]:
    """Of each frame but the first: its time, and the mean change of its grey levels."""
    greys = ((shot.time, shot.grey(*SIZE).astype(np.int16)) for shot in shots)
    for (_, old), (time, new) in pairwise(greys):
        if time >= end:
            return
        yield time, float(np.abs(new - old).mean())
