"""A film -> a timeline: frames to features, windows to segments, segments to a summary."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from argus_cli.captioner.answer import Answer
from argus_cli.captioner.picture import Clock
from argus_cli.errors import PromptTooLong, VideoError
from argus_cli.film_reader import film_reader
from argus_cli.media.images import name_of
from argus_cli.media.scenes import scene_cuts
from argus_cli.media.videos import FilmSource, VideoInfo, frames, plan_times, probe
from argus_cli.schema import Frame, Sampling, Segment, TileGrid, VideoCaption, VideoTimings
from argus_cli.smolvlm.prompt import STYLES, film_parts
from argus_cli.smolvlm.tiling import cut_tiles, plan_tiles
from argus_cli.timeline import (
    cut_bounds,
    equal_bounds,
    fewer_bounds,
    grouped,
    merge,
    most_agreed,
    plain_summary,
)

if TYPE_CHECKING:
    from argus_cli.captioner.core import Captioner

FILM_PROMPT = "Describe what happens in this video in one sentence."
SUMMARY_PROMPT = "Summarize the whole video in one or two sentences."
SUMMARY_FRAMES = 8
# Two frames look the same when no cell of a 32x32 grey miniature differs by more than this many
# levels of 255: compression noise averages out in a cell, a moving mouth doesn't.
SAME_LEVELS = 3


@dataclass(frozen=True, kw_only=True)
class FilmRequest:
    """What to ask about a film, and which of its frames to look at. Times in seconds.

    With a ``timeout`` the film is read in a process of its own, which its crash or its memory
    doesn't outlive either.
    """

    prompt: str | None = None  # None: what suits the model
    system: str | None = None
    fps: float = 1.0
    max_frames: int = 64
    window: float = 10.0
    scenes: bool = False
    start: float = 0.0
    end: float | None = None
    summary: bool = True
    timeout: float | None = None  # what no step of reading it may exceed; None: no limit
    sampling: Sampling = field(default_factory=Sampling)

    def changed(self, changes: Mapping[str, object]) -> "FilmRequest":
        """The same with some fields replaced, and a seed where chance needs one."""
        request = replace(self, **changes)  # type: ignore[arg-type]
        return replace(request, sampling=request.sampling.seeded())


@dataclass(frozen=True)
class Seen:
    """One frame through the tower: its features [1, S, H]; ``same`` as the frame before."""

    frame: Frame
    features: Tensor
    same: bool


class FilmStream:
    """A timeline as it is found: an iterator over segments, then ``result``.

    ``on_frame`` is called with each frame; ``progress`` of ``length`` seconds is seen by then.
    """

    result: VideoCaption
    info: VideoInfo

    def __init__(self, captioner: "Captioner", source: FilmSource, request: FilmRequest):
        self._captioner, self._source, self._request = captioner, source, request
        self._clock = Clock(captioner.model.device)
        self._frames: list[Frame] = []
        self._reused = 0
        self._few: list[Seen] = []  # for the summary, spread over the film
        self._last: Answer | None = None  # of the frame before, for models that see one at a time
        self.on_frame: Callable[[Frame, Image.Image], None] | None = None
        self.progress, self.length = 0.0, 0.0
        self._segments = self._run()

    def __iter__(self) -> Iterator[Segment]:
        return self._segments

    def __next__(self) -> Segment:
        return next(self._segments)

    def _run(self) -> Iterator[Segment]:
        with film_reader(self._source, self._request.timeout) as self._ask:
            yield from self._follow()

    def _follow(self) -> Iterator[Segment]:
        self.info = info = self._ask(probe)
        bounds = self._bounds(info)
        self.length = bounds[-1] - bounds[0]
        times = self._times(info, bounds)
        self._check_room(times, bounds)
        stretches = grouped(self._look(times), bounds, lambda seen: seen.frame.time)
        found = []
        for segment in merge(self._segment(*stretch) for stretch in stretches):
            found.append(segment)
            yield segment
        self.result = self._record(info, found, self._summary(found))

    def _bounds(self, info: VideoInfo) -> list[float]:
        """Where segments may begin and end."""
        request = self._request
        end = info.duration if request.end is None else min(request.end, info.duration)
        if request.start >= end and (request.start or info.duration):
            raise VideoError(
                f"{name_of(self._source)}: nothing lies between --start {request.start:g} s and "
                f"{end:g} s, the film is {info.duration:.2f} s long"
            )
        if request.scenes:
            cuts = self._ask(scene_cuts, start=request.start, end=end)
            return fewer_bounds(cut_bounds(request.start, end, cuts), request.max_frames)
        return equal_bounds(request.start, end, request.window)

    def _times(self, info: VideoInfo, bounds: list[float]) -> list[float]:
        """When to look; with scenes, each of them gets its share, and at least one frame."""
        request = self._request
        pieces = list(pairwise(bounds)) if request.scenes else [(bounds[0], bounds[-1])]
        spare = request.max_frames - len(pieces)
        return [
            time
            for start, end in pieces
            for time in plan_times(
                info.duration,
                fps=request.fps,
                max_frames=1 + int(spare * (end - start) / (self.length or 1.0)),
                start=start,
                end=end,
            )
        ]

    def _check_room(self, times: list[float], bounds: list[float]) -> None:
        """Refuse windows with more frames than the model can read, before the tower runs."""
        most = max(len(inside) for _, _, inside in grouped(times, bounds, float))
        self._prompt_ids(self._parts(times[-most:], self._prompt))

    @property
    def _prompt(self) -> str:
        if self._request.prompt is not None:
            return self._request.prompt
        return FILM_PROMPT if self._captioner.config.model.reads_video else STYLES["caption"]

    def _parts(self, times: Sequence[float], prompt: str) -> tuple[str | TileGrid, ...]:
        """A turn about frames at ``times``; a model that can't read a film gets one picture."""
        grid = self._grid
        if self._captioner.config.model.reads_video:
            return (*film_parts(times, self.info.duration, grid), prompt)
        return (grid, prompt)

    @property
    def _grid(self) -> TileGrid:
        unsplit = replace(self._captioner.config.preprocess, split=False)
        return plan_tiles((self.info.width, self.info.height), unsplit)

    def _look(self, times: list[float]) -> Iterator[Seen]:
        """Each frame with its features, those of the frame before where nothing has changed."""
        shown: NDArray[np.int16] | None = None
        stride = math.ceil(len(times) / SUMMARY_FRAMES)
        for frame, picture in self._ask(frames, times):
            self._clock.lap("decode")
            self.progress = frame.time - self._request.start
            small = miniature(picture)
            if self.on_frame:
                self.on_frame(frame, picture)
            same = shown is not None and bool(np.abs(small - shown).max() <= SAME_LEVELS)
            if same:
                self._reused += 1
            else:
                shown, features = small, self._captioner.features(cut_tiles(picture, self._grid))
            self._clock.lap("vision")
            seen = Seen(frame, features, same)
            if len(self._frames) % stride == 0:
                self._few.append(seen)
            self._frames.append(frame)
            yield seen

    def _segment(self, start: float, end: float, inside: list[Seen]) -> Segment:
        if self._captioner.config.model.reads_video:
            answer = self._answer(self._parts([s.frame.time for s in inside], self._prompt), inside)
        else:
            answers = []
            for seen in inside:
                if not seen.same or self._last is None:
                    self._last = self._answer(self._parts([], self._prompt), [seen])
                answers.append(self._last)
            answer = answers[most_agreed([answer.text for answer in answers])]
        self._clock.lap("generate")
        return Segment(start, end, " ".join(answer.text.split()), answer.confidence)

    def _answer(self, parts: tuple[str | TileGrid, ...], inside: list[Seen]) -> Answer:
        captioner, request = self._captioner, self._request
        ids = self._prompt_ids(parts)
        features = torch.cat([seen.features for seen in inside])
        return captioner.answer(ids, features, request.sampling).complete()

    def _prompt_ids(self, parts: tuple[str | TileGrid, ...]) -> list[int]:
        ids = self._captioner.prompt_ids(parts, self._request.system)
        self._captioner.check_room(name_of(self._source), len(ids), self._request.sampling)
        return ids

    def _summary(self, segments: list[Segment]) -> str | None:
        """What the film is about: told by the model from the segments and a few frames."""
        if not self._request.summary:
            return None
        if self._captioner.config.model.captions_only:
            return plain_summary(segments)
        few = self._few
        lines = [str(segment) for segment in segments]
        while True:
            question = "\n".join(["What happens in this video:", *lines, SUMMARY_PROMPT])
            if self._captioner.config.model.reads_video:
                parts = self._parts([seen.frame.time for seen in few], question)
            else:
                parts = (*[self._grid] * len(few), question)
            try:
                self._prompt_ids(parts)
                break
            except PromptTooLong:  # a long film: every other segment still tells its course
                if len(lines) == len(few) == 1:
                    return None
                lines, few = lines[::2], few[::2]
        answer = self._answer(parts, few)
        self._clock.lap("generate")
        return " ".join(answer.text.split())

    def _record(
        self, info: VideoInfo, segments: list[Segment], summary: str | None
    ) -> VideoCaption:
        laps = {
            phase: self._clock.laps.get(phase, 0.0) for phase in ("decode", "vision", "generate")
        }
        return VideoCaption(
            path=name_of(self._source),
            duration=info.duration,
            width=info.width,
            height=info.height,
            frames=tuple(self._frames),
            frames_reused=self._reused,
            segments=tuple(segments),
            summary=summary,
            prompt=self._prompt,
            seed=self._request.sampling.seed,
            seconds=VideoTimings(**laps),
            **self._captioner.provenance,
        )


def miniature(picture: Image.Image) -> NDArray[np.int16]:
    """A frame as 32x32 means of its grey levels."""
    small = picture.convert("L").resize((32, 32), Image.Resampling.BOX)
    return np.asarray(small, np.int16)
