"""The generation loop and its pure sampler: embeddings in, token ids out. Knows nothing of text.

B sequences, L positions, H hidden size, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from argus_cli.schema import Sampling

Cache = TypeVar("Cache", contravariant=True)
Rows = TypeVar("Rows", bound="RowCache")


class LanguageModel(Protocol[Cache]):
    """What the loop needs of a model."""

    def embed(self, ids: Tensor, features: Tensor | None = None) -> Tensor: ...

    def next_logits(
        self, x: Tensor, cache: Cache | None = None, padding: Tensor | None = None
    ) -> Tensor: ...


class RowCache(Protocol):
    """What a batch needs of its cache."""

    def keep(self, rows: Sequence[int]) -> None: ...


@dataclass(frozen=True)
class Step:
    """One token and the model's own (untempered) log-probability of it."""

    token: int
    log_probability: float


def generate(
    model: LanguageModel[Cache], x: Tensor, cache: Cache, sampling: Sampling
) -> Iterator[Step]:
    """Continue the embedded prompt [1, L, H], one token at a time, max_new_tokens at most.

    The caller stops at the end token: the next forward pass only runs when it asks for more.
    """
    generator = _generator(sampling)
    for remaining in range(sampling.max_new_tokens, 0, -1):
        step = sample(model.next_logits(x, cache)[0].cpu(), sampling, generator)
        yield step
        if remaining > 1:
            x = model.embed(torch.tensor([[step.token]], device=x.device))


def generate_batch(
    model: LanguageModel[Rows],
    logits: Tensor,
    cache: Rows,
    padding: Tensor | None,
    samplings: Sequence[Sampling],
    take: Callable[[int, Step], bool],
) -> None:
    """Continue B prompts together; ``logits`` [B, V] are those after each prompt.

    ``take(row, step)`` is given every token and says whether its row goes on. A row that has ended
    leaves the batch at once: the next step reads neither its keys and values nor writes more.
    ``padding`` [B] counts the positions at the start of each row that hold nothing.
    """
    rows, generators = list(range(len(samplings))), [_generator(s) for s in samplings]
    for number in count(1):
        steps = [
            sample(row_logits, samplings[row], generators[row])
            for row, row_logits in zip(rows, logits.cpu(), strict=True)
        ]
        on = [
            place
            for place, (row, step) in enumerate(zip(rows, steps, strict=True))
            if take(row, step) and number < samplings[row].max_new_tokens
        ]
        if not on:
            return
        if len(on) < len(rows):
            cache.keep(on)
            rows = [rows[place] for place in on]
            padding = None if padding is None else padding[on]
        ids = torch.tensor([[steps[place].token] for place in on], device=logits.device)
        logits = model.next_logits(model.embed(ids), cache, padding)


def _generator(sampling: Sampling) -> torch.Generator:
    generator = torch.Generator()
    if sampling.seed is not None:
        generator.manual_seed(sampling.seed)
    return generator


def sample(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Step:
    """Logits [V] -> one token: the most likely one at temperature 0, else drawn from top-p.

    At temperatures below a millionth too, where logits divided by it overflow.
    """
    log_probabilities = logits.log_softmax(-1)
    if sampling.temperature < 1e-6:
        token = int(log_probabilities.argmax())
    else:
        token = _draw(logits / sampling.temperature, sampling.top_p, generator)
    return Step(token, float(log_probabilities[token]))


def _draw(logits: Tensor, top_p: float, generator: torch.Generator) -> int:
    """Nucleus sampling (Holtzman et al. 2020): the smallest set of tokens that reaches top_p."""
    probabilities, order = logits.softmax(-1).sort(descending=True, stable=True)
    before = probabilities.cumsum(-1) - probabilities
    dropped = before >= top_p
    dropped[0] = False  # the most likely one stays, even at top_p = 0
    kept = probabilities.masked_fill(dropped, 0)
    return int(order[torch.multinomial(kept, 1, generator=generator)])


class RepetitionGuard:
    """Finds a tail that repeats itself, of any period up to ``longest`` tokens.

    For each period it counts how many tokens at the end equal the one a period before.
    """

    def __init__(self, longest: int = 128, copies: int = 3, tokens: int = 12):
        self._runs = [0] * (longest + 1)
        self._ids: list[int] = []
        self._copies, self._tokens = copies, tokens
        self.held = 0  # tokens at the end that so far only repeat what came before
        self.looping = False

    def push(self, token: int) -> None:
        """Count one more token; ``held`` and ``looping`` tell the state after it."""
        self._ids.append(token)
        for period in range(1, min(len(self._ids), len(self._runs))):
            same = self._ids[-1 - period] == token
            run = self._runs[period] = self._runs[period] + 1 if same else 0
            long_enough = run + period >= max(self._copies * period, self._tokens)
            self.looping |= long_enough
        self.held = max(self._runs)
