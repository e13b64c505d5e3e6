"""Where a film cuts from one scene to the next, by how much each frame differs from the one before.

Knows nothing of what the frames show. Dissolves and fades go unseen: no two frames differ by much.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import inf
from statistics import median

import numpy as np

from argus_cli.media.reels import opened
from argus_cli.media.shots import Shot
from argus_cli.media.videos import FilmSource

SIZE = (32, 18)  # of the grey frames compared
LEAST_CHANGE = 12.0  # grey levels of 255, averaged over the frame, that a cut changes at least
OUTSTANDING = 4.0  # and this many times the median of the changes before it
MEMORY = 12  # changes, over which the median is taken


def scene_cuts(
    source: FilmSource, *, start: float = 0.0, end: float = inf, shortest_s: float = 0.5
) -> list[float]:
    """The times between start and end at which a new scene appears, in one pass over every frame.

    No two are closer than ``shortest_s``. Raises VideoError.
    """
    with opened(source) as reel:
        near = reel.shots_near(start) if start > 0 and reel.can_jump else None
        changes = _changes(near or reel.shots(), end)
        return list(find_cuts((change for change in changes if change[0] >= start), shortest_s))


def find_cuts(changes: Iterable[tuple[float, float]], shortest_s: float) -> Iterator[float]:
    """The times of the (time, change) pairs at which the change stands out."""
    before: deque[float] = deque([0.0], maxlen=MEMORY)
    latest = -inf
    for time, change in changes:
        stands_out = change >= max(LEAST_CHANGE, OUTSTANDING * median(before))
        if stands_out and time - latest >= shortest_s:
            yield time
            latest = time
        before.append(change)


def _changes(shots: Iterator[Shot], end: float) -> Iterator[tuple[float, float]]:
    """Of each frame but the first: its time, and the mean change of its grey levels."""
    greys = ((shot.time, shot.grey(*SIZE).astype(np.int16)) for shot in shots)
    for (_, old), (time, new) in pairwise(greys):
        if time >= end:
            return
        yield time, float(np.abs(new - old).mean())
