"""Which stage of a forward pass takes how long, seen from outside while the real one runs.

Modules are hooked: a mark is written when one begins and when it ends, so that the gaps between
neighbouring marks add up to the whole. A gap belongs to the module in which it lies, or to what is
known to come before or after that module (between fc1 and fc2 lies the activation). A gap that no
rule names is counted under ``None``: not accounted for.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from torch import nn

from argus_cli.profiling.timing import Clock

Laps = Mapping[tuple[str | None, int | None], float]


@dataclass(frozen=True)
class Rules:
    """Stages by the last part of a module's name.

    ``inside`` holds for everything below the module too, where nothing closer is named; ``before``
    is the time from its beginning to that of its first child; ``after`` the time from its end to
    the next mark.
    """

    inside: Mapping[str, str]
    before: Mapping[str, str]
    after: Mapping[str, str]

    def stage_inside(self, path: str) -> str | None:
        """That of the closest module on the path, from its end upwards."""
        parts = reversed(path.split("."))
        return next((self.inside[part] for part in parts if part in self.inside), None)

    def name(self, path: str) -> bool:
        """Whether there is a rule for this very module."""
        last = path.rpartition(".")[2]
        return last in self.inside or last in self.before or last in self.after


TOWER = Rules(
    inside={
        "embeddings": "patch embedding",
        "layer_norm1": "LN1",
        "self_attn": "attention block",  # when none of its linears is called as a module
        **dict.fromkeys(("q_proj", "k_proj", "v_proj", "qkv_proj"), "qkv"),
        "out_proj": "out",
        "layer_norm2": "LN2",
        "mlp": "MLP",  # likewise
        "fc1": "fc1",
        "fc2": "fc2",
        "post_layernorm": "post-LN",
        "connector": "pixel shuffle",
        "proj": "projection",
    },
    before={"vision_model": "normalise", "connector": "pixel shuffle"},
    after={
        "layer_norm1": "qkv",
        **dict.fromkeys(("q_proj", "k_proj", "v_proj", "qkv_proj"), "attention"),
        **dict.fromkeys(("out_proj", "self_attn", "fc2", "mlp"), "residual"),
        "layer_norm2": "fc1",
        "fc1": "activation",
    },
)
DECODER = Rules(
    inside={
        **dict.fromkeys(("input_layernorm", "self_attn"), "prefill: attention"),
        **dict.fromkeys(("post_attention_layernorm", "mlp"), "prefill: MLP"),
        **dict.fromkeys(("norm", "lm_head"), "prefill: head"),
    },
    before={"text_model": "prefill: attention"},  # the rotary table and the mask
    after={"text_model": "prefill: head"},
)


class Mark(NamedTuple):
    """A module begins or ends; the empty path is the whole."""

    path: str
    begins: bool
    time: float


@dataclass
class Trace:
    """The marks of one forward pass."""

    rules: Rules
    marks: list[Mark] = field(default_factory=list)

    @property
    def total(self) -> float:
        """Seconds from the first mark to the last."""
        return self.marks[-1].time - self.marks[0].time

    def laps(self) -> Laps:
        """Seconds per stage and layer; both None for what no rule names."""
        laps: dict[tuple[str | None, int | None], float] = {}
        for before, after in pairwise(self.marks):
            stage = _stage(self.rules, before, after)
            key = (stage, _layer(before.path + " " + after.path) if stage else None)
            laps[key] = laps.get(key, 0.0) + after.time - before.time
        return laps

    def stages(self) -> dict[str | None, float]:
        """Seconds per stage, summed over layers."""
        sums: dict[str | None, float] = {}
        for (stage, _), seconds in self.laps().items():
            sums[stage] = sums.get(stage, 0.0) + seconds
        return sums


@contextmanager
def traced(model: nn.Module, rules: Rules, clock: Clock) -> Iterator[Trace]:
    """Mark each module of ``model`` that begins or ends until the context is left.

    What lies inside a stage and is not named itself needs no marks: each costs microseconds.
    """
    trace = Trace(rules)

    def mark(path: str, begins: bool) -> None:
        trace.marks.append(Mark(path, begins, clock()))

    with ExitStack() as hooks:
        for path, module in model.named_modules():
            if path and (rules.name(path) or not rules.stage_inside(path)):
                hooks.enter_context(_hooked(module, path, mark))
        mark("", True)
        yield trace
        mark("", False)


@contextmanager
def _hooked(module: nn.Module, path: str, mark: Callable[[str, bool], None]) -> Iterator[None]:
    begin = module.register_forward_pre_hook(lambda *_: mark(path, True))
    end = module.register_forward_hook(lambda *_: mark(path, False))
    try:
        yield
    finally:
        begin.remove()
        end.remove()


def _stage(rules: Rules, before: Mark, after: Mark) -> str | None:
    last = before.path.rpartition(".")[2]
    if not before.begins:
        return rules.after.get(last) or rules.stage_inside(before.path)
    if after.begins:
        return rules.before.get(last) or rules.stage_inside(after.path)
    return rules.stage_inside(before.path)


def _layer(paths: str) -> int | None:
    found = re.search(r"\blayers\.(\d+)", paths)
    return int(found[1]) if found else None
