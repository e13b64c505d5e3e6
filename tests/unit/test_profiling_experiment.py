"""Experiments: arms agree or it is an error; what can't run says why; each one on tiny shapes."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from conftest import TINY

from argus_cli.errors import UsageError
from argus_cli.profiling.arms import EXPERIMENTS
from argus_cli.profiling.experiment import Arm, ArmDisagrees, Bench, Experiment, Unavailable
from argus_cli.profiling.report import experiment_table
from argus_cli.profiling.subject import open_subject
from argus_cli.smolvlm.config import parse_model


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def bench() -> Bench:
    clock = FakeClock()
    config = parse_model(TINY)
    return Bench(config, 2, torch.float32, torch.device("cpu"), runs=1, clock=clock)


def adds(amount: float, costs: float = 1.0):  # type: ignore[no-untyped-def]
    """An arm that answers x + amount and takes so many seconds."""

    def prepare(bench: Bench):  # type: ignore[no-untyped-def]
        def work() -> torch.Tensor:
            bench.clock.now += costs  # type: ignore[attr-defined]
            return torch.ones(3) + amount

        return work

    return prepare


def absent(_: Bench):  # type: ignore[no-untyped-def]
    raise Unavailable("no such unit")


def experiment(*arms: Arm[Bench]) -> Experiment[Bench]:
    return Experiment("sums", lambda bench: bench, lambda _: arms, flops=lambda _: 4e9)


def test_rows_hold_time_rate_and_difference(bench: Bench) -> None:
    result = experiment(
        Arm("first", adds(0, costs=2)), Arm("second", adds(5e-5), computes=False)
    ).run(bench)
    first, second = result.rows
    assert first == {
        "arm": "first", "ms": 2000, "median_ms": 2000, "gflop_per_s": 2, "max_difference": 0,
    }  # fmt: skip
    assert second["max_difference"] == pytest.approx(5e-5, rel=0.01)
    assert "gflop_per_s" not in second
    assert result.summary == ["fastest: second, 2.00 times as fast as first"]


@pytest.mark.parametrize("amount", [3e-4, float("nan")])
def test_an_arm_that_disagrees_is_an_error(bench: Bench, amount: float) -> None:
    with pytest.raises(ArmDisagrees, match=r"sums: the arm 'odd' differs .* float32 sums"):
        experiment(Arm("first", adds(0)), Arm("odd", adds(amount))).run(bench)


def test_coarser_numbers_may_differ_more(bench: Bench) -> None:
    arms = Arm("first", adds(0)), Arm("odd", adds(0.01))
    assert len(experiment(*arms).run(replace(bench, dtype=torch.bfloat16)).rows) == 2


def test_an_arm_that_cannot_run_says_why(bench: Bench) -> None:
    result = experiment(Arm("first", adds(0)), Arm("other", absent)).run(bench)
    assert result.rows[1] == {"arm": "other", "unavailable": "no such unit"}
    lines = experiment_table(
        {
            "model": "m", "dtype": "d", "device": "cpu", "threads": 1, "tiles": 2,
            "machine": {"processor": "p"}, "versions": {"torch": "t"},
            "title": result.title, "rows": result.rows, "summary": result.summary,
        }
    )  # fmt: skip
    assert "other: not available: no such unit" in lines


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", sorted(EXPERIMENTS.keys() - {"batching"}))
@torch.inference_mode()
def test_the_arms_of_each_experiment_agree(bench: Bench, name: str) -> None:
    clock = iter(range(10**6))
    result = EXPERIMENTS[name](replace(bench, clock=lambda: float(next(clock))))
    ran = [row for row in result.rows if "ms" in row]
    absent = {row["arm"]: row["unavailable"] for row in result.rows if "unavailable" in row}
    assert len(ran) >= 2 and result.summary
    assert torch.get_num_threads() == 2
    if torch.backends.mkldnn.is_available():
        towers = {f"{n} towers, 1 tile each": f"it needs {n} threads" for n in (4, 8)}
        assert absent == (towers if name == "tile-chunks" else {})
    limit = 0.1 if name == "dtype" else 1e-4
    assert all(row["max_difference"] < limit for row in ran)


@torch.inference_mode()
def test_batching_has_a_row_for_each_linear_and_count(bench: Bench) -> None:
    clock = iter(range(10**6))
    bench = replace(bench, tiles=4, clock=lambda: float(next(clock)))
    result = EXPERIMENTS["batching"](bench)
    assert [(row["linear"], row["tiles"], row["rows"]) for row in result.rows[:4]] == [
        ("qkv 48->144", 1, 16), ("qkv 48->144", 2, 32), ("qkv 48->144", 4, 64),
        ("fc1 48->80", 1, 16),
    ]  # fmt: skip
    # By this clock all take a second: four tiles at once are four times as fast as one.
    assert [row["relative"] for row in result.rows[:3]] == [1, 2, 4]
    assert result.summary[0].startswith("batching can save at most 75% of the four products")


@torch.inference_mode()
def test_a_stem_is_no_plain_patch_embedding(bench: Bench) -> None:
    with pytest.raises(UsageError, match="convolutional stem"):
        EXPERIMENTS["patch-embed"](replace(bench, config=open_subject("glimpse").config))
