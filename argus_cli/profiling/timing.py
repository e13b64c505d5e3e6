"""Seconds of repeated work. The clock is passed in, so that tests can bring their own."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from argus_cli.device import synchronize

Clock = Callable[[], float]
T = TypeVar("T")


@dataclass(frozen=True)
class Sample:
    """Seconds of several runs of the same work."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def fastest(self) -> float:
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """Slowest minus fastest."""
        return max(self.seconds) - min(self.seconds)


def device_clock(device: torch.device) -> Clock:
    """Seconds, read after the device has done what was asked of it."""

    def now() -> float:
        synchronize(device)
        return time.perf_counter()

    return now


def timed(work: Callable[[], T], clock: Clock) -> tuple[T, float]:
    """The result of one run, and its seconds."""
    start = clock()
    result = work()
    return result, clock() - start


def repeat(work: Callable[[], T], runs: int, clock: Clock, budget_s: float) -> tuple[T, Sample]:
    """Run once to warm up, then ``runs`` times, fewer where that would exceed ``budget_s``.

    The result is the warm-up's.
    """
    result, left = timed(work, clock)[0], budget_s
    seconds: list[float] = []
    while len(seconds) < runs and (not seconds or left > seconds[-1]):
        seconds.append(timed(work, clock)[1])
        left -= seconds[-1]
    return result, Sample(tuple(seconds))
