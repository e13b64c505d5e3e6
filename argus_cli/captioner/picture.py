"""One picture and a prompt -> an answer, as it is written."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from PIL import Image

from argus_cli.captioner.answer import Answer
from argus_cli.device import synchronize
from argus_cli.media.images import DEFAULT_MAX_PIXELS, ImageSource, name_of, open_image
from argus_cli.schema import Caption, Sampling, TileGrid, Timings
from argus_cli.smolvlm.prompt import STYLES
from argus_cli.smolvlm.tiling import cut_tiles, plan_tiles

if TYPE_CHECKING:
    from argus_cli.captioner.core import Captioner


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to ask about a picture, and how to look at it."""

    prompt: str = STYLES["caption"]
    system: str | None = None
    tiles: str | int = "full"
    max_pixels: int | None = DEFAULT_MAX_PIXELS
    sampling: Sampling = field(default_factory=Sampling)

    def changed(self, changes: Mapping[str, object]) -> "Request":
        """The same with some fields replaced, and a seed where chance needs one."""
        request = replace(self, **changes)  # type: ignore[arg-type]
        return replace(request, sampling=request.sampling.seeded())


class Clock:
    """Seconds per phase, with the device's work counted where it was asked for."""

    def __init__(self, device: torch.device):
        self.laps: dict[str, float] = {}
        self._device, self._last = device, time.perf_counter()

    def lap(self, phase: str) -> None:
        """Count what has passed since the last lap to ``phase``."""
        synchronize(self._device)
        now = time.perf_counter()
        self.laps[phase] = self.laps.get(phase, 0.0) + now - self._last
        self._last = now


class Stream:
    """One answer as it is written: an iterator over text, then ``result``."""

    result: Caption

    def __init__(self, captioner: "Captioner", image: ImageSource, request: Request):
        self._captioner, self._image, self._request = captioner, image, request
        self._pieces = self._run()

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def __next__(self) -> str:
        return next(self._pieces)

    def _run(self) -> Iterator[str]:
        captioner, request = self._captioner, self._request
        name, clock = name_of(self._image), Clock(captioner.model.device)
        picture = open_image(self._image, max_pixels=request.max_pixels)
        clock.lap("decode")
        grid = plan_tiles(picture.size, captioner.config.preprocess, request.tiles)
        ids = captioner.prompt_ids((grid, request.prompt), request.system)
        captioner.check_room(name, len(ids), request.sampling)
        tiles = cut_tiles(picture, grid)
        clock.lap("preprocess")
        features = captioner.features(tiles)
        clock.lap("vision")
        answer = captioner.answer(ids, features, request.sampling)
        answer.on_first_token = lambda: clock.lap("prefill")
        yield from answer
        clock.lap("generate")
        self.result = self._record(name, picture, grid, len(ids), answer, clock)

    def _record(
        self, name: str, picture: Image.Image, grid: TileGrid, tokens: int, answer: Answer,
        clock: Clock,
    ) -> Caption:  # fmt: skip
        captioner, request = self._captioner, self._request
        return Caption(
            path=name,
            caption=answer.text.strip(),
            width=picture.width,
            height=picture.height,
            tiles=grid.tiles,
            grid=(grid.rows, grid.cols),
            image_tokens=grid.tiles * captioner.config.model.tokens_per_tile,
            prompt_tokens=tokens,
            new_tokens=answer.tokens,
            finish_reason=answer.finish_reason,
            confidence=answer.confidence,
            prompt=request.prompt,
            seed=request.sampling.seed,
            seconds=Timings(**clock.laps),
            **captioner.provenance,
        )
