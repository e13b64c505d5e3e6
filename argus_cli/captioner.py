"""The one place where pixels become tensors and ids become text.

    captioner = load("smolvlm-256m")
    print(captioner.caption("photo.jpg").caption)

A picture may be a path, bytes, a binary stream or a PIL image.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from PIL import Image
from torch import Tensor

from argus_cli.device import choose_device, choose_dtype, synchronize, use_threads
from argus_cli.errors import PromptTooLong
from argus_cli.generation import RepetitionGuard, Step, generate
from argus_cli.media.images import DEFAULT_MAX_PIXELS, ImageSource, name_of, open_image
from argus_cli.schema import Caption, Sampling, TileGrid, Timings
from argus_cli.smolvlm.cache import KVCache
from argus_cli.smolvlm.config import CheckpointConfig, read_config
from argus_cli.smolvlm.model import SmolVLM
from argus_cli.smolvlm.prompt import STYLES, Message, chat
from argus_cli.smolvlm.tiling import cut_tiles, plan_tiles
from argus_cli.smolvlm.tokenizer import IncrementalDecoder, Tokenizer
from argus_cli.smolvlm.weights import load_model
from argus_cli.zoo.catalog import ModelFolder, default_model, find


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to ask about a picture, and how to look at it."""

    prompt: str = STYLES["caption"]
    system: str | None = None
    tiles: str | int = "full"
    max_pixels: int | None = DEFAULT_MAX_PIXELS
    sampling: Sampling = field(default_factory=Sampling)


def load(
    name_or_folder: str | os.PathLike[str] | ModelFolder | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    threads: int | None = None,
) -> "Captioner":
    """A model that is on this machine, ready to caption.

    Without a name: ARGUS_MODEL, else the best model that is on disk, else the bundled glimpse.
    Raises ModelMissing, ModelDamaged, or UsageError for a device that isn't there.
    """
    if name_or_folder is None:
        folder = default_model()[0]
    elif isinstance(name_or_folder, ModelFolder):
        folder = name_or_folder
    else:
        folder = find(os.fspath(name_or_folder))
    use_threads(threads)
    chosen = choose_device(device)
    number_type = choose_dtype(dtype, chosen)
    config = read_config(folder.path)
    tokenizer = Tokenizer(folder.path / "tokenizer.json", config.model.text.vocab_size)
    model = load_model(folder.path, config.model, dtype=number_type, device=chosen)
    return Captioner(model, tokenizer, config, folder)


class Captioner:
    """A loaded model."""

    def __init__(
        self, model: SmolVLM, tokenizer: Tokenizer, config: CheckpointConfig, folder: ModelFolder
    ):
        self.model, self.tokenizer, self.config, self.folder = model, tokenizer, config, folder

    def caption(
        self, image: ImageSource, request: Request | None = None, **changes: object
    ) -> Caption:
        """Answer about one picture. Keywords are Request's fields, e.g. ``prompt=...``.

        Raises ImageError or PromptTooLong.
        """
        stream = self.stream(image, request, **changes)
        for _ in stream:
            pass
        return stream.result

    def stream(
        self, image: ImageSource, request: Request | None = None, **changes: object
    ) -> "Stream":
        """Like ``caption``, but text piece by piece; ``result`` is there when it has ended."""
        request = replace(request or Request(), **changes)  # type: ignore[arg-type]
        return Stream(self, image, replace(request, sampling=request.sampling.seeded()))

    def prompt_ids(self, grids: list[TileGrid], request: Request) -> list[int]:
        """The conversation about pictures cut by ``grids``, as ids."""
        system = [Message("system", (request.system,))] if request.system else []
        messages = [*system, Message("user", (*grids, request.prompt))]
        return self.tokenizer.encode(chat(messages, self.config.model.tokens_per_tile))


class Stream:
    """One answer as it is written: an iterator over text, then ``result``.

    A tail that only repeats what stands before it is held back; if it goes on, the answer ends
    before it.
    """

    result: Caption

    def __init__(self, captioner: Captioner, image: ImageSource, request: Request):
        self._captioner, self._image, self._request = captioner, image, request
        self._pieces = self._run()

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def __next__(self) -> str:
        return next(self._pieces)

    @torch.inference_mode()
    def _prepare(self, clock: "_Clock") -> "_Prepared":
        captioner, request = self._captioner, self._request
        picture = open_image(self._image, max_pixels=request.max_pixels)
        clock.lap("decode")
        grid = plan_tiles(picture.size, captioner.config.preprocess, request.tiles)
        ids = captioner.prompt_ids([grid], request)
        self._check_context(len(ids))
        tiles = torch.from_numpy(cut_tiles(picture, grid))
        clock.lap("preprocess")
        features = captioner.model.encode_tiles(tiles)
        clock.lap("vision")
        x = captioner.model.embed(torch.tensor([ids], device=captioner.model.device), features)
        return _Prepared(picture, grid, ids, x)

    def _check_context(self, prompt_tokens: int) -> None:
        """Refuse before the tower runs what the decoder couldn't read."""
        new, room = self._request.sampling.max_new_tokens, self._captioner.config.model.text
        if prompt_tokens + new > room.max_position_embeddings:
            raise PromptTooLong(
                f"{name_of(self._image)}: the prompt takes {prompt_tokens} tokens and the answer "
                f"up to {new}, the model has room for {room.max_position_embeddings}; "
                "shorten --prompt, lower --max-new-tokens or limit --tiles"
            )

    def _run(self) -> Iterator[str]:
        clock = _Clock(self._captioner.model.device)
        ready = self._prepare(clock)
        answer = _Answer(self._captioner.tokenizer, self._request.sampling.stop)
        for step in self._steps(ready.embedded, clock):
            if step.token in self._captioner.config.eos_token_ids:
                answer.finish("stop")
                break
            answer.push(step)
            if fresh := answer.take():
                yield fresh
            if answer.finished:
                break
        else:
            answer.finish("length")
        clock.lap("generate")
        if fresh := answer.take():
            yield fresh
        self.result = self._record(ready, answer, clock)

    def _steps(self, x: Tensor, clock: "_Clock") -> Iterator[Step]:
        model, sampling = self._captioner.model, self._request.sampling
        positions = x.shape[1] + sampling.max_new_tokens
        with torch.inference_mode():
            cache = KVCache(model.config.text, 1, positions, dtype=model.dtype, device=model.device)
        steps = generate(model, x, cache, sampling)
        while True:
            with torch.inference_mode():  # not across a yield: it would leak into the caller
                step = next(steps, None)
            if step is None:
                return
            if "prefill" not in clock.laps:
                clock.lap("prefill")
            yield step

    def _record(self, ready: "_Prepared", answer: "_Answer", clock: "_Clock") -> Caption:
        captioner, model, grid = self._captioner, self._captioner.model, ready.grid
        return Caption(
            path=name_of(self._image),
            caption=answer.text.strip(),
            width=ready.picture.width,
            height=ready.picture.height,
            tiles=grid.tiles,
            grid=(grid.rows, grid.cols),
            image_tokens=grid.tiles * captioner.config.model.tokens_per_tile,
            prompt_tokens=len(ready.ids),
            new_tokens=answer.tokens,
            finish_reason=answer.finished,
            confidence=answer.confidence,
            model=captioner.folder.name,
            revision=captioner.folder.revision,
            dtype=str(model.dtype).removeprefix("torch."),
            device=str(model.device),
            prompt=self._request.prompt,
            seed=self._request.sampling.seed,
            seconds=Timings(**clock.laps),
        )


@dataclass(frozen=True)
class _Prepared:
    picture: Image.Image
    grid: TileGrid
    ids: list[int]
    embedded: Tensor


class _Clock:
    """Seconds per phase, with the device's work counted where it was asked for."""

    def __init__(self, device: torch.device):
        self.laps: dict[str, float] = {}
        self._device, self._last = device, time.perf_counter()

    def lap(self, phase: str) -> None:
        synchronize(self._device)
        now = time.perf_counter()
        self.laps[phase], self._last = now - self._last, now


class _Answer:
    """Tokens to text: what is certain is given out, what may yet be cut is held back."""

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...]):
        self._decoder, self._guard, self._stop = (
            IncrementalDecoder(tokenizer),
            RepetitionGuard(),
            stop,
        )
        self._steps: list[Step] = []
        self._decoded = 0  # tokens of which the text is in ``text``
        self._given = 0  # characters given out
        self.text = ""
        self.finished = ""

    @property
    def tokens(self) -> int:
        return self._decoded

    @property
    def confidence(self) -> float:
        """Mean log-probability of the answer's tokens, 0 for an empty answer."""
        kept = self._steps[: self._decoded]
        return sum(step.log_probability for step in kept) / len(kept) if kept else 0.0

    def push(self, step: Step) -> None:
        self._steps.append(step)
        self._guard.push(step.token)
        if self._guard.looping:
            self.text += self._decoder.finish()
            self.finished = "repetition"
        else:
            self._decode(len(self._steps) - self._guard.held)

    def finish(self, reason: str) -> None:
        """The model has ended: nothing is held back any more."""
        self._decode(len(self._steps))
        self.text += self._decoder.finish()
        self.finished = self.finished or reason

    def _decode(self, certain: int) -> None:
        while self._decoded < certain and not self.finished:
            self.text += self._decoder.push(self._steps[self._decoded].token)
            self._decoded += 1
            self._cut_at_stop()

    def _cut_at_stop(self) -> None:
        found = [at for stop in self._stop if (at := self.text.find(stop)) >= 0]
        if found:
            self.text = self.text[: min(found)]
            self.finished = "stop"

    def take(self) -> str:
        """Text that is new and certain: not the beginning of a stop string."""
        end = len(self.text)
        if not self.finished:
            end -= max((_overlap(self.text, stop) for stop in self._stop), default=0)
        fresh, self._given = self.text[self._given : end], max(end, self._given)
        return fresh


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of ``text`` begin ``stop``."""
    sizes = range(min(len(text), len(stop)), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)
