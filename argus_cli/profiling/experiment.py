"""The form of an experiment: arms that must give the same answer, timed on the same inputs."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from argus_cli.errors import ArgusError
from argus_cli.profiling.subject import random_model
from argus_cli.profiling.timing import Clock, Sample, repeat
from argus_cli.smolvlm.config import ModelConfig
from argus_cli.smolvlm.kernels import specialise
from argus_cli.smolvlm.model import SmolVLM

I = TypeVar("I")  # noqa: E741 (inputs of an experiment)
Work = Callable[[], Tensor]
Row = dict[str, Any]

_BUDGET_S = 5.0  # for one arm
# How far arms may differ, as a share of the first arm's root mean square (at least 1). The largest
# values are about five times that, and each rounding moves them by half a unit of their last bit.
TOLERANCES = {
    torch.float32: (1e-4, "float32 sums in another order"),
    torch.bfloat16: (2**-4, "bfloat16 keeps 8 bits of each intermediate"),
    torch.float16: (2**-7, "float16 keeps 11 bits of each intermediate"),
}


class ArmDisagrees(ArgusError):
    """An arm of an experiment gave another answer than the first one."""


class Unavailable(Exception):
    """This machine or this PyTorch can't run an arm; the message says why."""


@dataclass(frozen=True)
class Bench:
    """Whose shapes are measured, and how."""

    config: ModelConfig
    tiles: int
    dtype: torch.dtype
    device: torch.device
    runs: int
    clock: Clock
    seeds: Iterator[int] = field(default_factory=count)

    @property
    def rows(self) -> int:
        """Patches of all tiles."""
        return self.tiles * self.config.vision.grid**2

    def noise(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Seeded numbers, others with every call."""
        generator = torch.Generator(self.device).manual_seed(next(self.seeds))
        numbers = torch.empty(shape, dtype=self.dtype, device=self.device)
        return numbers.normal_(0, scale, generator=generator)

    def time(self, work: Callable[[], Tensor]) -> tuple[Tensor, Sample]:
        """The result, and the seconds of as many runs as fit into a few seconds."""
        return repeat(work, self.runs, self.clock, _BUDGET_S)


def small_model(bench: Bench, text_layers: int = 1, *, fast: bool = True) -> SmolVLM:
    """The model with a tower of one layer and a decoder of a few, as captioning runs it."""
    vision = replace(bench.config.vision, num_hidden_layers=1)
    text = bench.config.text
    text = replace(text, num_hidden_layers=min(text_layers, text.num_hidden_layers))
    config = replace(bench.config, vision=vision, text=text)
    model = random_model(config, bench.dtype, bench.device)
    return specialise(model) if fast else model


@dataclass(frozen=True)
class Arm(Generic[I]):
    """One way to compute it.

    ``prepare`` does what happens once per model (it may raise Unavailable) and returns the work to
    be timed. ``finish`` brings the result, untimed, into the form in which arms are compared.
    """

    name: str
    prepare: Callable[[I], Work]
    finish: Callable[[I, Tensor], Tensor] = lambda _, result: result
    computes: bool = True  # whether the experiment's operations are its


@dataclass(frozen=True)
class Experiment(Generic[I]):
    """Arms over common inputs. ``flops`` None leaves the rate out."""

    title: str
    inputs: Callable[[Bench], I]
    arms: Callable[[Bench], tuple[Arm[I], ...]]
    flops: Callable[[Bench], float] | None = None
    coarsest: torch.dtype | None = None  # when arms have number types of their own
    summary: Callable[[Bench, list[Row]], list[str]] = lambda _, rows: fastest_arm(rows)

    def run(self, bench: Bench) -> "Result":
        """Time every arm. Raises ArmDisagrees."""
        inputs, first, rows = self.inputs(bench), None, list[Row]()
        for arm in self.arms(bench):
            try:
                result, sample = bench.time(arm.prepare(inputs))
            except (Unavailable, RuntimeError) as error:  # the latter: an operator isn't there
                why = str(error).partition("\n")[0]
                rows.append({"arm": arm.name, "unavailable": why})
                continue
            finished = arm.finish(inputs, result).float()
            first = finished if first is None else first
            difference = self._compare(arm.name, first, finished, bench)
            rows.append({
                "arm": arm.name, "ms": 1e3 * sample.fastest, "median_ms": 1e3 * sample.median,
                **self._rate(bench, arm, sample), "max_difference": difference,
            })  # fmt: skip
        return Result(self.title, rows, self.summary(bench, rows))

    def _rate(self, bench: Bench, arm: Arm[I], sample: Sample) -> Row:
        if self.flops is None or not arm.computes:
            return {}
        return {"gflop_per_s": self.flops(bench) / sample.fastest / 1e9}

    def _compare(self, name: str, first: Tensor, other: Tensor, bench: Bench) -> float:
        share, why = TOLERANCES[self.coarsest or bench.dtype]
        allowed = share * max(1.0, float(first.square().mean().sqrt()))
        same_shape = first.shape == other.shape
        difference = float((first - other).abs().max()) if same_shape else math.inf
        if not difference <= allowed:  # nan too
            raise ArmDisagrees(
                f"{self.title}: the arm {name!r} differs from the first by {difference:.2g}, more "
                f"than the {allowed:.2g} that may come from {why}"
            )
        return difference


@dataclass(frozen=True)
class Result:
    """Rows of a table, and what they mean."""

    title: str
    rows: list[Row]
    summary: list[str] = field(default_factory=list)


def fastest_arm(rows: list[Row]) -> list[str]:
    """Which arm won, and by how much over the first."""
    ran = [row for row in rows if "ms" in row]
    if not ran:
        return ["no arm ran"]
    best = min(ran, key=lambda row: float(row["ms"]))
    ratio = ran[0]["ms"] / best["ms"]
    return [f"fastest: {best['arm']}, {ratio:.2f} times as fast as {ran[0]['arm']}"]
