"""Times and captions of a film into a timeline: windows, agreement, merged segments. Pure.

All times are seconds on the film's own clock.
"""

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from argus_cli.schema import Segment

T = TypeVar("T")


def equal_bounds(start: float, end: float, length: float) -> list[float]:
    """start, start + length, ..., end. A rest shorter than half a window joins the one before."""
    number = max(1, math.floor((end - start) / length + 0.5))
    return [start + length * index for index in range(number)] + [end]


def cut_bounds(start: float, end: float, cuts: Iterable[float]) -> list[float]:
    """start, the cuts in between, end."""
    return [start, *sorted({cut for cut in cuts if start < cut < end}), end]


def fewer_bounds(bounds: Sequence[float], stretches: int) -> list[float]:
    """Join the shortest stretch with its shorter neighbour until there are so many at most."""
    left = list(bounds)
    while len(left) - 1 > stretches:
        lengths = [after - before for before, after in pairwise(left)]
        at = lengths.index(min(lengths))
        joins_next = at == 0 or (at + 1 < len(lengths) and lengths[at + 1] < lengths[at - 1])
        del left[at + 1 if joins_next else at]
    return left


def grouped(
    frames: Iterable[T], bounds: Sequence[float], time_of: Callable[[T], float]
) -> Iterator[tuple[float, float, list[T]]]:
    """Frames by rising time -> (start, end, frames) of each stretch, once it is complete.

    A stretch without a frame belongs to the one before: that one's last frame is still on screen.
    """
    start, stretch = bounds[0], 0
    held: list[T] = []
    for frame in frames:
        now = min(max(bisect_right(bounds, time_of(frame)) - 1, 0), len(bounds) - 2)
        if held and now != stretch:
            yield start, bounds[now], held
            start, held = bounds[now], []
        stretch = now
        held.append(frame)
    if held:
        yield start, bounds[-1], held


def most_agreed(captions: Sequence[str]) -> int:
    """Which caption shares most words with the others; the first of equals."""
    bags = [Counter(re.findall(r"\w+", caption.lower())) for caption in captions]

    def agreement(bag: Counter[str]) -> float:
        shared = (2 * (bag & other).total() / (bag + other).total() for other in bags if other)
        return sum(shared) if bag else 0.0

    scores = [agreement(bag) for bag in bags]
    return max(range(len(scores)), key=lambda index: (round(scores[index], 9), -index))


def merge(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Join neighbours that say the same; each comes once the next one differs."""
    last: Segment | None = None
    for segment in segments:
        if last is not None and last.caption == segment.caption:
            last = joined(last, segment)
        else:
            if last is not None:
                yield last
            last = segment
    if last is not None:
        yield last


def joined(first: Segment, second: Segment) -> Segment:
    """One segment out of two neighbours with the same caption; confidence is the mean over time."""
    spans = (first.end - first.start, second.end - second.start)
    weights = spans if sum(spans) else (1.0, 1.0)
    confidence = (first.confidence * weights[0] + second.confidence * weights[1]) / sum(weights)
    return replace(first, end=second.end, confidence=confidence)


def plain_summary(segments: Sequence[Segment]) -> str:
    """What a captioner without instructions can say of a film: its distinct segments in order."""
    texts = list(dict.fromkeys(segment.caption.rstrip(".") for segment in segments))
    if len(texts) <= 1:
        return f"{texts[0]}." if texts else ""
    first, *others = texts
    lowered = [text[:1].lower() + text[1:] for text in others]
    return f"{first}; then {'; then '.join(lowered)}."
