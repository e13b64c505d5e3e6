"""A loaded model: prompts to ids, tiles to features, both to an answer."""

import math
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from argus_cli.captioner.answer import Answer
from argus_cli.captioner.film import FilmRequest, FilmStream
from argus_cli.captioner.picture import Request, Stream
from argus_cli.device import choose_device, choose_dtype
from argus_cli.errors import ModelDamaged, ModelError, PromptTooLong, UsageError
from argus_cli.generation import Step, generate, generate_batch
from argus_cli.media.images import ImageSource
from argus_cli.media.videos import FilmSource
from argus_cli.schema import Caption, Sampling, TileGrid, VideoCaption
from argus_cli.smolvlm.cache import KVCache
from argus_cli.smolvlm.config import CheckpointConfig, read_config
from argus_cli.smolvlm.model import SmolVLM
from argus_cli.smolvlm.prompt import IMAGE, Message, chat
from argus_cli.smolvlm.tokenizer import Tokenizer
from argus_cli.smolvlm.weights import load_model
from argus_cli.zoo.catalog import ModelFolder, default_model, find


def load(
    name_or_folder: str | os.PathLike[str] | ModelFolder | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    threads: int | None = None,
    quantize: str | None = None,
) -> "Captioner":
    """A model that is on this machine, ready to caption.

    Without a name: ARGUS_MODEL, else the best model that is on disk, else the bundled glimpse.
    ``quantize="int8"`` holds the decoder's weights in 8 bits, on a CPU. Raises ModelMissing,
    ModelDamaged, or UsageError for a device that isn't there.
    """
    if name_or_folder is None:
        folder = default_model()[0]
    elif isinstance(name_or_folder, ModelFolder):
        folder = name_or_folder
    else:
        folder = find(os.fspath(name_or_folder))
    if threads is not None:  # a library leaves its host's setting alone
        torch.set_num_threads(threads)
    chosen = choose_device(device)
    number_type = choose_dtype(dtype, chosen)
    config = read_config(folder.path)
    tokenizer = Tokenizer(folder.path / "tokenizer.json", config.model.text.vocab_size)
    check_image_token(folder, tokenizer, config)
    if quantize not in (None, "int8"):
        raise UsageError(f"--quantize {quantize}: there is int8")
    int8 = quantize is not None
    model = load_model(folder.path, config.model, dtype=number_type, device=chosen, int8=int8)
    return Captioner(model, tokenizer, config, folder, int8=int8)


def check_image_token(folder: ModelFolder, tokenizer: Tokenizer, config: CheckpointConfig) -> None:
    """Raise ModelDamaged when the tokenizer and config.json mean different image tokens."""
    if tokenizer.encode([IMAGE]) != [config.model.image_token_id]:
        raise ModelDamaged(
            f"{folder.path / 'tokenizer.json'}: {IMAGE} isn't token {config.model.image_token_id} "
            "as config.json says"
        )


class Provenance(TypedDict):
    """Which model answered, and how it was run."""

    model: str
    revision: str
    dtype: str
    device: str


class Read(NamedTuple):
    """A prompt that the decoder has read: the logits [1, V] after it, and what it remembers."""

    logits: Tensor
    cache: KVCache


class Captioner:
    """A loaded model. Keywords of the methods are the fields of Request or FilmRequest.

    Any number of threads may use one at once, and a process may hold several; the number of torch's
    threads is one for all of them, as the last ``load`` that named it left it. A process that was
    forked after loading can't use it and gets a ModelError: the threads that compute stay behind.
    """

    def __init__(
        self,
        model: SmolVLM,
        tokenizer: Tokenizer,
        config: CheckpointConfig,
        folder: ModelFolder,
        *,
        int8: bool = False,
    ):
        self.model, self.tokenizer, self.config, self.folder = model, tokenizer, config, folder
        self.int8 = int8  # how the decoder's weights are held
        self._process = os.getpid()

    @property
    def provenance(self) -> Provenance:
        """What records say of the model."""
        return {
            "model": self.folder.name,
            "revision": self.folder.revision,
            "dtype": str(self.model.dtype).removeprefix("torch.") + ("+int8" if self.int8 else ""),
            "device": str(self.model.device),
        }

    def caption(
        self, image: ImageSource, request: Request | None = None, **changes: object
    ) -> Caption:
        """Answer about one picture: a path, bytes, a binary stream or a PIL image.

        Raises ImageError or PromptTooLong.
        """
        stream = self.stream(image, request, **changes)
        for _ in stream:
            pass
        return stream.result

    def stream(
        self, image: ImageSource, request: Request | None = None, **changes: object
    ) -> Stream:
        """Like ``caption``, but text piece by piece; ``result`` is there when it has ended."""
        return Stream(self, image, (request or Request()).changed(changes))

    def video(
        self, film: FilmSource, request: FilmRequest | None = None, **changes: object
    ) -> VideoCaption:
        """The timeline of a film: a path, bytes or a binary stream.

        Raises VideoError or PromptTooLong.
        """
        stream = self.segments(film, request, **changes)
        for _ in stream:
            pass
        return stream.result

    def segments(
        self, film: FilmSource, request: FilmRequest | None = None, **changes: object
    ) -> FilmStream:
        """Like ``video``, but segment by segment; ``result`` is there when it has ended."""
        return FilmStream(self, film, (request or FilmRequest()).changed(changes))

    def prompt_ids(self, parts: Sequence[str | TileGrid], system: str | None = None) -> list[int]:
        """A user's turn of texts and pictures, after which the model is to answer, as ids."""
        before = [Message("system", (system,))] if system else []
        messages = [*before, Message("user", tuple(parts))]
        return self.tokenizer.encode(chat(messages, self.config.model.tokens_per_tile))

    def check_room(self, name: str, prompt_tokens: int, sampling: Sampling) -> None:
        """Raise PromptTooLong for what the decoder couldn't read, before the tower runs."""
        room = self.config.model.text.max_position_embeddings
        if prompt_tokens + sampling.max_new_tokens > room:
            raise PromptTooLong(
                f"{name}: the prompt takes {prompt_tokens} tokens and the answer up to "
                f"{sampling.max_new_tokens}, the model has room for {room}; shorten --prompt, "
                "lower --max-new-tokens or use fewer tiles or frames"
            )

    def features(self, tiles: NDArray[np.uint8]) -> Tensor:
        """Tiles uint8 [N, T, T, 3] -> image features [N, S, H]."""
        self._refuse_fork()
        with torch.inference_mode():
            return self.model.encode_tiles(torch.from_numpy(tiles))

    def answer(self, ids: list[int], features: Tensor | None, sampling: Sampling) -> Answer:
        """The model's answer to a prompt, written as it is read."""
        return Answer(
            self._steps(ids, features, sampling),
            self.tokenizer,
            self.config.eos_token_ids,
            sampling.stop,
            self.config.calibration,
        )

    def _steps(self, ids: list[int], features: Tensor | None, sampling: Sampling) -> Iterator[Step]:
        with torch.inference_mode():
            x, cache = self._prompt(ids, features, sampling.max_new_tokens)
        steps = generate(self.model, x, cache, sampling)
        while True:
            with torch.inference_mode():  # not across a yield: it would leak into the caller
                step = next(steps, None)
            if step is None:
                return
            yield self._finite(step)

    @torch.inference_mode()
    def read(self, ids: list[int], features: Tensor) -> Read:
        """Take in a prompt that is to be answered together with others."""
        x, cache = self._prompt(ids, features, 0)
        return Read(self.model.next_logits(x, cache), cache)

    @torch.inference_mode()
    def answer_together(self, reads: list[Read], samplings: Sequence[Sampling]) -> list[Answer]:
        """Complete answers to the prompts of ``reads``, which it empties to free their memory."""
        answers = [
            Answer(
                iter(()),
                self.tokenizer,
                self.config.eos_token_ids,
                sampling.stop,
                self.config.calibration,
            )  # fmt: skip
            for sampling in samplings
        ]

        def take(row: int, step: Step) -> bool:
            answers[row].push(self._finite(step))
            return not answers[row].finish_reason

        logits = torch.cat([read.logits for read in reads])
        more = max(sampling.max_new_tokens for sampling in samplings)
        cache, padding = KVCache.joined([read.cache for read in reads], more)
        reads.clear()
        generate_batch(self.model, logits, cache, padding, samplings, take)
        for answer in answers:
            answer.end()
        return answers

    def _prompt(self, ids: list[int], features: Tensor | None, more: int) -> tuple[Tensor, KVCache]:
        """A prompt's embeddings, and a cache for it and ``more`` tokens."""
        self._refuse_fork()
        model = self.model
        x = model.embed(torch.tensor([ids], device=model.device), features)
        cache = KVCache(
            model.config.text, 1, len(ids) + more, dtype=model.activation_dtype, device=model.device
        )
        return x, cache

    def _refuse_fork(self) -> None:
        """OpenMP would wait for ever for the threads that a forked process doesn't have."""
        if os.getpid() != self._process:
            raise ModelError(
                f"{self.folder.name}: was loaded before this process was forked; load it here, "
                "or start processes by spawn"
            )

    def _finite(self, step: Step) -> Step:
        if not math.isfinite(step.log_probability):
            raise ModelError(
                f"{self.folder.name}: its numbers overflow in {self.provenance['dtype']}; "
                "use --dtype bfloat16 or float32"
            )
        return step
