"""One picture and a prompt -> an answer, as it is written."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from argus_cli.captioner.answer import Answer
from argus_cli.captioner.template import check_template, differs, fill
from argus_cli.captioner.wording import reworded, word
from argus_cli.device import synchronize
from argus_cli.errors import UsageError
from argus_cli.media.images import DEFAULT_MAX_PIXELS, ImageSource, name_of
from argus_cli.picture_reader import Look, ReadPicture, read_picture
from argus_cli.schema import Caption, Sampling, TileGrid, Timings
from argus_cli.smolvlm.prompt import STYLES

if TYPE_CHECKING:
    from argus_cli.captioner.core import Captioner


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to ask about a picture, and how to look at it.

    ``style`` says what is asked and what becomes of the answer. With a ``prompt``, a template with
    the placeholders of captioner.template, the answer is the model's own words. Raises UsageError
    for a style or a placeholder that doesn't exist.
    """

    style: str = "caption"
    prompt: str | None = None
    system: str | None = None
    tiles: str | int = "full"
    max_pixels: int | None = DEFAULT_MAX_PIXELS
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise UsageError(f"--style {self.style}: not one of {', '.join(STYLES)}")
        if self.prompt is not None:
            check_template(self.prompt)

    def question(self, captions_only: bool) -> str:
        """The prompt, its placeholders still in it.

        A model that only captions is asked as it was trained, whatever becomes of the answer.
        """
        if self.prompt is not None:
            return self.prompt
        return STYLES["caption" if captions_only else self.style]

    def changed(self, changes: Mapping[str, object]) -> "Request":
        """The same with some fields replaced, and a seed where chance needs one."""
        request = replace(self, **changes)  # type: ignore[arg-type]
        return replace(request, sampling=request.sampling.seeded())


class Clock:
    """Seconds per phase, with the device's work counted where it was asked for."""

    def __init__(self, device: torch.device):
        self.laps: dict[str, float] = {}
        self._device, self._last = device, time.perf_counter()

    def lap(self, phase: str) -> float:
        """Count what has passed since the last lap to ``phase``; returns it."""
        synchronize(self._device)
        now = time.perf_counter()
        passed, self._last = now - self._last, now
        self.laps[phase] = self.laps.get(phase, 0.0) + passed
        return passed


@dataclass(frozen=True, eq=False)
class Prepared:
    """One picture ready for the tower, with the question about it."""

    name: str
    size: tuple[int, int]
    grid: TileGrid
    request: Request
    prompt: str  # as it was asked, its placeholders filled
    ids: list[int]
    tiles: NDArray[np.uint8]  # [N, T, T, 3]
    laps: dict[str, float]  # seconds of decode and preprocess

    def word(self, text: str) -> str:
        """What the request's style makes of the answer; a user's own prompt is left alone."""
        if self.request.prompt is not None:
            return text.strip()
        return word(text, self.request.style, self.prompt)

    def record(self, captioner: "Captioner", answer: Answer, laps: Mapping[str, float]) -> Caption:
        """The record of a finished answer; ``laps`` are the seconds of the other phases."""
        return Caption(
            path=self.name,
            caption=self.word(answer.text),
            width=self.size[0],
            height=self.size[1],
            tiles=self.grid.tiles,
            grid=(self.grid.rows, self.grid.cols),
            image_tokens=self.grid.tiles * captioner.config.model.tokens_per_tile,
            prompt_tokens=len(self.ids),
            new_tokens=answer.tokens,
            finish_reason=answer.finish_reason,
            confidence=answer.confidence,
            style=self.request.style if self.request.prompt is None else "",
            prompt=self.prompt,
            seed=self.request.sampling.seed,
            seconds=Timings(**self.laps, **laps),
            **captioner.provenance,
        )


def prepare(
    captioner: "Captioner",
    image: ImageSource,
    request: Request,
    read: ReadPicture = read_picture,
) -> Prepared:
    """Have it opened and cut, then ask; safe in any thread, touches no tensor.

    Raises ImageError or PromptTooLong.
    """
    dated = request.prompt is not None and differs(request.prompt)
    look = Look(captioner.config.preprocess, request.tiles, request.max_pixels, dated)
    name, picture = name_of(image), read(image, look)
    prompt = request.question(captioner.config.model.captions_only)
    if request.prompt is not None:
        prompt = fill(prompt, image, picture.size, picture.taken)
    ids = captioner.prompt_ids((picture.grid, prompt), request.system)
    captioner.check_room(name, len(ids), request.sampling)
    return Prepared(
        name, picture.size, picture.grid, request, prompt, ids, picture.tiles, picture.laps
    )


class Stream:
    """One answer as it is written: an iterator over text, then ``result``.

    The pieces make up the caption: what a style may yet change is held back.
    """

    result: Caption

    def __init__(
        self,
        captioner: "Captioner",
        image: ImageSource,
        request: Request,
        read: ReadPicture = read_picture,
    ):
        self._captioner, self._image, self._request = captioner, image, request
        self._read = read
        self._pieces = self._run()

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def __next__(self) -> str:
        return next(self._pieces)

    def _run(self) -> Iterator[str]:
        captioner, request = self._captioner, self._request
        picture = prepare(captioner, self._image, request, self._read)
        clock = Clock(captioner.model.device)
        features = captioner.features(picture.tiles)
        clock.lap("vision")
        answer = captioner.answer(picture.ids, features, request.sampling)
        answer.on_first_token = lambda: clock.lap("prefill")
        if request.prompt is None:
            yield from reworded(answer, request.style, picture.prompt)
        else:
            yield from answer
        clock.lap("generate")
        self.result = picture.record(captioner, answer, clock.laps)
