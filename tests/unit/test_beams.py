"""Beam search against a search of everything, on a tiny random decoder."""

import itertools

import pytest
import torch
from conftest import TINY
from torch import Tensor

from argus_cli.beams import beam_search
from argus_cli.generation import Step, generate
from argus_cli.schema import Sampling
from argus_cli.smolvlm.cache import KVCache
from argus_cli.smolvlm.config import parse_model
from argus_cli.smolvlm.model import SmolVLM

END = (3, 5)


@pytest.fixture(scope="module")
def model() -> SmolVLM:
    """Says one of 8 words; unlike a fresh one it has opinions."""
    raw = {**TINY, "text_config": {**TINY["text_config"], "vocab_size": 8}, "image_token_id": 7}
    torch.manual_seed(3)
    model = SmolVLM(parse_model(raw)).eval().requires_grad_(False)
    model.lm_head.weight.mul_(60)
    return model


def prompt(model: SmolVLM, length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, length, model.config.text.hidden_size, generator=generator)


def read(model: SmolVLM, x: Tensor, more: int) -> tuple[Tensor, KVCache]:
    cache = KVCache(model.config.text, 1, x.shape[1] + more, dtype=torch.float32)
    return model.next_logits(x, cache), cache


def likeliest(model: SmolVLM, x: Tensor, most: int) -> tuple[list[int], float]:
    """Of all answers that end within ``most`` tokens or have that many."""
    best: tuple[list[int], float] = ([], -torch.inf)
    for tokens in itertools.product(range(8), repeat=most):
        ids = list(tokens)
        ids = ids[: next((at + 1 for at, token in enumerate(ids) if token in END), most)]
        whole = torch.cat((x, model.embed(torch.tensor([ids[:-1]], dtype=torch.long))), 1)
        logits = model(whole)[0, x.shape[1] - 1 :].log_softmax(-1)
        score = float(logits[range(len(ids)), ids].sum())
        best = max(best, (ids, score), key=lambda each: each[1])
    return best


@pytest.mark.parametrize("seed", range(4))
def test_a_wide_beam_finds_the_likeliest_answer(model: SmolVLM, seed: int) -> None:
    x = prompt(model, 4, seed)
    [steps] = beam_search(model, *read(model, x, 3), None, 8**2, 3, END)
    ids, score = likeliest(model, x, 3)
    assert [step.token for step in steps] == ids
    assert sum(step.log_probability for step in steps) == pytest.approx(score, abs=1e-4)


def test_one_beam_is_greedy(model: SmolVLM) -> None:
    x = prompt(model, 5, 1)
    [steps] = beam_search(model, *read(model, x, 6), None, 1, 6, END)
    cache = KVCache(model.config.text, 1, 11, dtype=torch.float32)
    greedy = list(generate(model, x, cache, Sampling(6)))
    ends = next((at + 1 for at, step in enumerate(greedy) if step.token in END), 6)
    assert [step.token for step in steps] == [step.token for step in greedy[:ends]]
    assert [step.log_probability for step in steps] == pytest.approx(
        [step.log_probability for step in greedy[:ends]], abs=1e-4
    )


def test_prompts_together_are_answered_as_alone(model: SmolVLM) -> None:
    prompts = [prompt(model, length, length) for length in (3, 6, 4)]
    alone = [beam_search(model, *read(model, x, 6), None, 3, 6, END)[0] for x in prompts]
    reads = [read(model, x, 0) for x in prompts]
    cache, padding = KVCache.joined([cache for _, cache in reads], 6)
    logits = torch.cat([logits for logits, _ in reads])
    together = beam_search(model, logits, cache, padding, 3, 6, END)
    assert [tokens(steps) for steps in together] == [tokens(steps) for steps in alone]


def test_nothing_is_written_after_the_end(model: SmolVLM) -> None:
    for seed in range(6):
        [steps] = beam_search(model, *read(model, prompt(model, 3, seed), 8), None, 3, 8, END)
        assert not set(tokens(steps[:-1])) & set(END)


def tokens(steps: list[Step]) -> list[int]:
    return [step.token for step in steps]
