"""Beam search: the answer that is likeliest as a whole, not word by word (Sutskever et al. 2014).

B prompts, k beams, V vocabulary.
"""

from collections.abc import Sequence
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from argus_cli.generation import LanguageModel, Step


class BeamCache(Protocol):
    """What the search needs of its cache."""

    def select(self, rows: Tensor) -> Self: ...


Beams = TypeVar("Beams", bound=BeamCache)


def beam_search(
    model: LanguageModel[Beams],
    logits: Tensor,
    cache: Beams,
    padding: Tensor | None,
    beams: int,
    max_new_tokens: int,
    end_tokens: Sequence[int],
) -> list[list[Step]]:
    """Continue B prompts, each by the best of ``beams`` answers, with its end token.

    ``logits`` [B, V] are those after each prompt; ``padding`` [B] counts the positions at the
    start of each row that hold nothing. An answer's score is the sum of its log-probabilities,
    so that none which is still written can overtake an ended one that is best.
    """
    prompts, vocabulary = logits.shape
    ends = torch.tensor(end_tokens, device=logits.device)
    first = torch.arange(prompts, device=logits.device)[:, None]  # each prompt's row, then beam
    scores, nothing = logits.new_zeros(prompts, 1), logits.new_empty(prompts, 0)
    tokens, steps, ended = nothing.long(), nothing, scores > 0
    for number in range(max_new_tokens):
        log_probabilities = logits.log_softmax(-1)
        # An ended answer goes on in one way, which costs nothing.
        log_probabilities[ended.flatten()] = -torch.inf
        log_probabilities[ended.flatten(), ends[0]] = 0.0
        totals = (scores.flatten()[:, None] + log_probabilities).view(prompts, -1)
        scores, places = totals.topk(min(beams, totals.shape[1]))
        rows = (first * ended.shape[1] + places // vocabulary).flatten()  # what each grew from
        chosen = (places % vocabulary).flatten()
        tokens = torch.cat((tokens[rows], chosen[:, None]), 1)
        steps = torch.cat((steps[rows], log_probabilities[rows, chosen][:, None]), 1)
        ended = (ended.flatten()[rows] | torch.isin(chosen, ends)).view_as(scores)
        if ended[:, 0].all() or number + 1 == max_new_tokens:
            break
        cache = cache.select(rows)
        empty = None if padding is None else padding.repeat_interleave(scores.shape[1])
        logits = model.next_logits(model.embed(chosen[:, None]), cache, empty)
    best = zip(*(each[:: scores.shape[1]].tolist() for each in (tokens, steps)), strict=True)
    return [_until_end(ids, each, set(end_tokens)) for ids, each in best]


def _until_end(ids: list[int], log_probabilities: list[float], ends: set[int]) -> list[Step]:
    length = next((at + 1 for at, token in enumerate(ids) if token in ends), len(ids))
    return [Step(*step) for step in zip(ids[:length], log_probabilities, strict=False)]
