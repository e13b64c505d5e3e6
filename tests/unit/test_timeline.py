"""Windows, agreement and merging, in plain numbers."""

import pytest

from argus_cli.schema import Segment, stamp
from argus_cli.timeline import (
    cut_bounds,
    equal_bounds,
    fewer_bounds,
    grouped,
    merge,
    most_agreed,
    plain_summary,
)


@pytest.mark.parametrize(
    ("start", "end", "length", "bounds"),
    [
        (0, 30, 10, [0, 10, 20, 30]),
        (0, 34, 10, [0, 10, 20, 34]),  # a short rest joins the one before
        (0, 36, 10, [0, 10, 20, 30, 36]),
        (5, 12, 10, [5, 12]),
        (0, 0, 10, [0, 0]),  # a single frame
        (0, 2, 10, [0, 2]),
    ],
)
def test_equal_bounds(start: float, end: float, length: float, bounds: list[float]) -> None:
    assert equal_bounds(start, end, length) == bounds


def test_cut_bounds_stay_inside_and_rise() -> None:
    assert cut_bounds(1, 9, [4, 0.5, 3, 3, 9, 12]) == [1, 3, 4, 9]


@pytest.mark.parametrize(
    ("most", "left"), [(5, [0, 1, 4, 5, 10]), (3, [0, 4, 5, 10]), (2, [0, 5, 10]), (1, [0, 10])]
)
def test_fewer_bounds_join_the_shortest(most: int, left: list[float]) -> None:
    assert fewer_bounds([0, 1, 4, 5, 10], most) == left


def groups(times: list[float], bounds: list[float]) -> list[tuple[float, float, list[float]]]:
    return list(grouped(times, bounds, float))


def test_grouped_covers_the_film_without_gaps() -> None:
    assert groups([0, 4, 12, 29.9], [0, 10, 20, 30]) == [
        (0, 10, [0, 4]), (10, 20, [12]), (20, 30, [29.9]),
    ]  # fmt: skip


def test_a_stretch_without_frames_belongs_to_the_one_before() -> None:
    assert groups([0, 25], [0, 10, 20, 30]) == [(0, 20, [0]), (20, 30, [25])]
    assert groups([3], [0, 10, 20, 30]) == [(0, 30, [3])]


def test_frames_outside_the_bounds_join_the_nearest() -> None:
    """The frame on screen at a start in mid-film is older than the start."""
    assert groups([4.9, 7, 31], [5, 10, 30]) == [(5, 10, [4.9, 7]), (10, 30, [31])]


def test_a_single_frame_is_a_segment() -> None:
    assert groups([0], [0, 0]) == [(0, 0, [0])]


def test_groups_come_as_soon_as_they_are_complete() -> None:
    pulled = []

    def frames():  # type: ignore[no-untyped-def]
        for time in (0.0, 5.0, 11.0, 21.0):
            pulled.append(time)
            yield time

    stream = grouped(frames(), [0, 10, 20, 30], float)
    assert next(stream) == (0, 10, [0.0, 5.0])
    assert pulled == [0.0, 5.0, 11.0]


@pytest.mark.parametrize(
    ("captions", "chosen"),
    [
        (["A dog runs.", "A dog runs on grass.", "A car."], 0),
        (["A car.", "A dog runs.", "A dog runs on grass."], 1),
        (["One.", "Two.", "Three."], 0),
        (["", "A dog.", ""], 1),
        (["Only."], 0),
        (["", ""], 0),
        (["A cat sleeps.", "A dog runs.", "A dog runs.", "A dog runs."], 1),
    ],
)
def test_most_agreed(captions: list[str], chosen: int) -> None:
    assert most_agreed(captions) == chosen


def test_neighbours_that_say_the_same_merge() -> None:
    parts = [
        Segment(0, 10, "a", -1.0), Segment(10, 40, "a", -2.0), Segment(40, 50, "b", -1.0),
        Segment(50, 60, "a", -1.0),
    ]  # fmt: skip
    assert list(merge(parts)) == [
        Segment(0, 40, "a", -1.75), Segment(40, 50, "b", -1.0), Segment(50, 60, "a", -1.0),
    ]  # fmt: skip
    assert list(merge([])) == []
    assert list(merge([Segment(0, 0, "a", -1.0), Segment(0, 0, "a", -3.0)])) == [
        Segment(0, 0, "a", -2.0)
    ]


def test_stamps() -> None:
    assert [stamp(t) for t in (0, 59.99, 61, 3599, 3600, 36_061)] == [
        "00:00", "00:59", "01:01", "59:59", "1:00:00", "10:01:01",
    ]  # fmt: skip
    assert str(Segment(61, 3700, "A dog.", 0.0)) == "[01:01-1:01:40] A dog."


def test_plain_summary_tells_each_thing_once() -> None:
    texts = ["A dog runs.", "A car.", "A dog runs."]
    parts = [Segment(n, n + 1, text, 0.0) for n, text in enumerate(texts)]
    assert plain_summary(parts) == "A dog runs; then a car."
    assert plain_summary(parts[:1]) == "A dog runs."
    assert plain_summary([]) == ""
