"""Repeating and timing, with a clock that the test moves."""

import pytest

from argus_cli.profiling.timing import Sample, repeat, timed


class FakeClock:
    """Stands still until the work moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_sample_numbers() -> None:
    sample = Sample((3.0, 1.0, 8.0))
    assert (sample.median, sample.fastest, sample.spread) == (3.0, 1.0, 7.0)


def test_timed_counts_the_work_alone() -> None:
    clock = FakeClock()
    clock.now = 5

    def work() -> str:
        clock.now += 2
        return "done"

    assert timed(work, clock) == ("done", 2)


@pytest.mark.parametrize(
    ("costs", "runs", "budget", "expected"),
    [
        ([9, 1, 2, 3], 3, 100, (1, 2, 3)),  # the warm-up isn't counted
        ([9, 4, 4, 4], 3, 9, (4, 4)),  # a third wouldn't fit
        ([9, 50], 3, 10, (50,)),  # one at least
    ],
)
def test_repeat(costs: list[float], runs: int, budget: float, expected: tuple[float]) -> None:
    clock, left = FakeClock(), list(costs)

    def work() -> float:
        cost = left.pop(0)
        clock.now += cost
        return cost

    assert repeat(work, runs, clock, budget) == (costs[0], Sample(expected))
