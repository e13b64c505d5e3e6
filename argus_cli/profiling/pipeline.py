"""One picture's way through the model, timed stage by stage: from JPEG bytes to a word."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from argus_cli.media.images import open_image
from argus_cli.profiling.ceilings import Ceilings
from argus_cli.profiling.flops import Cost, decoder_costs, tower_costs
from argus_cli.profiling.picture import Picture
from argus_cli.profiling.stages import DECODER, TOWER, Rules, Trace, traced
from argus_cli.profiling.subject import Subject
from argus_cli.profiling.timing import Clock, Sample, timed
from argus_cli.schema import TileGrid
from argus_cli.smolvlm.cache import KVCache
from argus_cli.smolvlm.model import SmolVLM
from argus_cli.smolvlm.prompt import STYLES, Message, chat
from argus_cli.smolvlm.tiling import cut_tiles
from argus_cli.smolvlm.tokenizer import IncrementalDecoder

T = TypeVar("T")
_BUDGET_S = 25.0  # for the tower's runs when their number isn't given
_STEPS = 3


@dataclass(frozen=True)
class Stage:
    """One row of the report. ``part`` is picture, vision or text; ``layer`` None for all layers."""

    part: str
    name: str
    sample: Sample
    cost: Cost = Cost()
    layer: int | None = None


@dataclass(frozen=True)
class Whole:
    """A forward pass as a whole: ``plain`` without hooks, ``traced`` with them.

    ``named`` is the part of the traced seconds that the stages account for.
    """

    plain: Sample
    traced: Sample
    named: Sample

    @property
    def unnamed(self) -> float:
        """The share of the traced seconds that no stage accounts for."""
        return 1 - self.named.median / self.traced.median

    @property
    def excess(self) -> float:
        """By how much the stages' sum exceeds the pass without hooks, as a share of that.

        Of the fastest runs, which other programs disturb least.
        """
        return self.named.fastest / self.plain.fastest - 1


@dataclass(frozen=True)
class Profile:
    """What was measured."""

    grid: TileGrid
    distinct_tiles: int
    prompt_tokens: int
    runs: int
    ceilings: Ceilings
    stages: tuple[Stage, ...]
    layers: tuple[Stage, ...]
    wholes: Mapping[str, Whole]  # vision, prefill


class Laps:
    """Seconds of each stage and pass, run after run."""

    def __init__(self, clock: Clock):
        self.clock = clock
        self.seconds: dict[str, list[float]] = {}
        self.traces: dict[str, list[Trace]] = {}

    def lap(self, name: str, work: Callable[[], T]) -> T:
        """Do the work and count its time."""
        result, seconds = timed(work, self.clock)
        self.seconds.setdefault(name, []).append(seconds)
        return result

    def trace(self, name: str, model: SmolVLM, rules: Rules, work: Callable[[], T]) -> T:
        """Do the work with every module marked."""
        with traced(model, rules, self.clock) as trace:
            result = work()
        self.traces.setdefault(name, []).append(trace)
        return result

    def sample(self, name: str) -> Sample:
        return Sample(tuple(self.seconds[name]))

    def whole(self, name: str) -> Whole:
        traces = self.traces[name]
        lost = [trace.stages().get(None, 0.0) for trace in traces]
        totals = [trace.total for trace in traces]
        named = (total - gap for total, gap in zip(totals, lost, strict=True))
        return Whole(self.sample(name), Sample(tuple(totals)), Sample(tuple(named)))


@torch.inference_mode()
def profile(
    subject: Subject,
    model: SmolVLM,
    picture: Picture,
    ceilings: Ceilings,
    clock: Clock,
    *,
    runs: int | None = None,
) -> Profile:
    """Measure every stage; without ``runs`` as often as fits into half a minute, 2 to 7 times."""
    trip = _Trip(subject, model, picture, clock)
    tower_s = trip.warm_up() * picture.grid.tiles
    runs = runs or max(2, min(7, int(_BUDGET_S / 2 / tower_s)))
    for _ in tqdm(range(runs), "measuring", disable=None, leave=False):
        trip.run()
    return Profile(
        picture.grid, trip.distinct, trip.positions, runs, ceilings, trip.stages(),
        (*trip.vision_stages(True), *trip.prefill_stages(True)),
        {"vision": trip.laps.whole("vision"), "prefill": trip.laps.whole("prefill")},
    )  # fmt: skip


class _Trip:
    """Decode, tile, look, read, answer: everything that a run repeats."""

    def __init__(self, subject: Subject, model: SmolVLM, picture: Picture, clock: Clock):
        self.subject, self.model = subject, model
        self.picture, self.grid = picture, picture.grid
        self.tokenizer = subject.tokenizer()
        self.laps = Laps(clock)
        self.positions = len(self._ids())
        tiles = self._tiles(cut_tiles(open_image(picture.source), self.grid)).numpy()
        self.distinct = len({tile.tobytes() for tile in tiles})  # equal ones cost the tower one

    def warm_up(self) -> float:
        """One tile, twice, and the prompt's length in words; seconds of the second tile."""
        side = self.grid.tile
        tile = torch.zeros(1, side, side, 3, dtype=torch.uint8)
        self.model.encode_tiles(tile)
        seconds = timed(lambda: self.model.encode_tiles(tile), self.laps.clock)[1]
        words = torch.zeros(1, self.positions, dtype=torch.long, device=self.model.device)
        self.model.next_logits(self.model.embed(words), self._cache())
        return seconds

    def run(self) -> None:
        laps, model = self.laps, self.model
        image = laps.lap("decode", lambda: open_image(self.picture.source))
        pixels = laps.lap("resize + tiling", lambda: cut_tiles(image, self.grid))
        tiles = self._tiles(pixels)
        features = self._both("vision", TOWER, lambda: model.encode_tiles(tiles))
        x = laps.lap("prompt assembly", lambda: self._prompt(features))

        def prefill() -> tuple[torch.Tensor, KVCache]:
            cache = self._cache()
            return model.next_logits(x, cache), cache

        logits, cache = self._both("prefill", DECODER, prefill)
        token = logits.argmax(-1, keepdim=True)
        laps.seconds.setdefault("decoded token", []).append(self._step(token, cache))
        decoder, (word, *_) = IncrementalDecoder(self.tokenizer), self.tokenizer.encode(["word"])
        laps.lap("detokenise", lambda: decoder.push(word))

    def _tiles(self, pixels: NDArray[np.uint8]) -> torch.Tensor:
        return torch.from_numpy(self.picture.told_apart(pixels))

    def _both(self, name: str, rules: Rules, work: Callable[[], T]) -> T:
        """With hooks and without; which comes first alternates, so that neither is favoured."""
        if len(self.laps.seconds.get(name, ())) % 2:
            self.laps.lap(name, work)
            return self.laps.trace(name, self.model, rules, work)
        self.laps.trace(name, self.model, rules, work)
        return self.laps.lap(name, work)

    def _step(self, token: torch.Tensor, cache: KVCache) -> float:
        """Seconds of the third step after the prompt: a step is short, and the first are cold."""
        seconds = [
            timed(lambda: self.model.next_logits(self.model.embed(token), cache), self.laps.clock)[
                1
            ]
            for _ in range(_STEPS)
        ]
        return seconds[-1]

    def _ids(self) -> list[int]:
        message = Message("user", (self.grid, STYLES["caption"]))
        pieces = chat([message], self.subject.config.tokens_per_tile)
        return self.subject.encode(self.tokenizer, pieces)

    def _prompt(self, features: torch.Tensor) -> torch.Tensor:
        return self.model.embed(torch.tensor([self._ids()], device=self.model.device), features)

    def _cache(self) -> KVCache:
        text, model = self.subject.config.text, self.model
        return KVCache(
            text, 1, self.positions + _STEPS, dtype=model.activation_dtype, device=model.device
        )

    def stages(self) -> tuple[Stage, ...]:
        laps, size = self.laps, self.model.dtype.itemsize
        step = decoder_costs(self.subject.config.text, 1, self.positions + _STEPS - 1, size)
        return (
            Stage("picture", "decode", laps.sample("decode")),
            Stage("picture", "resize + tiling", laps.sample("resize + tiling")),
            *self.vision_stages(False),
            Stage("text", "prompt assembly", laps.sample("prompt assembly")),
            *self.prefill_stages(False),
            Stage(
                "text", "decoded token", laps.sample("decoded token"), sum(step.values(), Cost())
            ),
            Stage("text", "detokenise", laps.sample("detokenise")),
        )

    def vision_stages(self, by_layer: bool) -> list[Stage]:
        size = self.model.activation_dtype.itemsize
        costs = tower_costs(self.subject.config, self.distinct, size)
        layers = self.subject.config.vision.num_hidden_layers
        return _stages("vision", self.laps.traces["vision"], costs, layers, by_layer)

    def prefill_stages(self, by_layer: bool) -> list[Stage]:
        text = self.subject.config.text
        costs = decoder_costs(text, self.positions, 0, self.model.activation_dtype.itemsize)
        costs = {f"prefill: {name}": cost for name, cost in costs.items()}
        return _stages("text", self.laps.traces["prefill"], costs, text.num_hidden_layers, by_layer)


def _stages(
    part: str, traces: list[Trace], costs: Mapping[str, Cost], layers: int, by_layer: bool
) -> list[Stage]:
    """A row for each stage, or for each stage of each layer, in the order of the forward pass."""
    if by_layer:
        runs = [{key: s for key, s in t.laps().items() if key[1] is not None} for t in traces]
    else:
        runs = [{(name, None): s for name, s in t.stages().items()} for t in traces]
    return [
        Stage(
            part,
            name,
            Sample(tuple(run.get((name, layer), 0.0) for run in runs)),
            costs[name] * (1 / layers if by_layer else 1),
            layer,
        )
        for name, layer in runs[0]
        if name is not None
    ]
