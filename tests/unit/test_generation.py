"""The sampler, the loop and the repetition guard, on a model that is a table of logits."""

import math

import pytest
import torch
from conftest import TINY
from torch import Tensor

from argus_cli.generation import RepetitionGuard, Step, generate, generate_batch, sample
from argus_cli.schema import Sampling
from argus_cli.smolvlm.cache import KVCache
from argus_cli.smolvlm.config import parse_model


class Table:
    """Says the tokens of a script; an embedding is the position in it."""

    def __init__(self, script: list[int], vocabulary: int = 10):
        self.script, self.vocabulary, self.calls = script, vocabulary, 0

    def embed(self, ids: Tensor, features: Tensor | None = None) -> Tensor:
        return ids[..., None].float()

    def next_logits(self, x: Tensor, cache: object = None) -> Tensor:
        logits = torch.zeros(1, self.vocabulary)
        logits[0, self.script[self.calls]] = 5.0
        self.calls += 1
        return logits


def test_greedy_follows_the_model_and_tells_its_probability() -> None:
    steps = list(generate(Table([3, 1, 4]), torch.zeros(1, 1, 1), None, Sampling(3)))
    assert [step.token for step in steps] == [3, 1, 4]
    expected = math.log(math.exp(5) / (math.exp(5) + 9))
    assert [step.log_probability for step in steps] == pytest.approx([expected] * 3)


def test_no_forward_pass_that_nobody_asked_for() -> None:
    model = Table([3, 1, 4, 1, 5])
    steps = generate(model, torch.zeros(1, 1, 1), None, Sampling(5))
    next(steps), next(steps)
    assert model.calls == 2


class Scripts:
    """Rows that each say the tokens of a script of their own; its cache is the list of them."""

    def __init__(self, *scripts: list[int]):
        self.scripts, self.sizes = list(scripts), []

    def keep(self, rows: list[int]) -> None:
        self.scripts = [self.scripts[row] for row in rows]

    def embed(self, ids: Tensor, features: Tensor | None = None) -> Tensor:
        assert ids.flatten().tolist() == [script.pop(0) for script in self.scripts]
        return ids

    def next_logits(self, x: Tensor, cache: object = None, padding: object = None) -> Tensor:
        self.sizes.append((len(x), padding if padding is None else padding.tolist()))
        return self.logits()

    def logits(self) -> Tensor:
        return torch.nn.functional.one_hot(torch.tensor([s[0] for s in self.scripts]), 10) * 9.0


def test_rows_of_a_batch_end_one_by_one_and_cost_nothing_after() -> None:
    model = Scripts([3, 1, 4, 1, 5], [2, 0], [7, 7, 0], [6, 6, 6, 6])
    limits = [Sampling(4), Sampling(9), Sampling(9), Sampling(2)]
    said: list[list[int]] = [[], [], [], []]

    def take(row: int, step: Step) -> bool:
        said[row].append(step.token)
        return step.token != 0

    generate_batch(model, model.logits(), model, torch.tensor([0, 3, 1, 2]), limits, take)
    assert said == [[3, 1, 4, 1], [2, 0], [7, 7, 0], [6, 6]]
    assert model.sizes == [(4, [0, 3, 1, 2]), (2, [0, 1]), (1, [0])]


def filled(length: int, value: float) -> KVCache:
    """A cache of one sequence of ``length`` positions."""
    config = parse_model(TINY).text
    cache = KVCache(config, 1, length, dtype=torch.float32)
    part = torch.full((1, config.num_key_value_heads, length, config.head_dim), value)
    for layer in range(config.num_hidden_layers):
        cache.update(layer, part, -part)
    cache.advance(length)
    return cache


def test_caches_are_joined_at_their_ends_and_rows_can_leave() -> None:
    cache, padding = KVCache.joined([filled(2, 1.0), filled(5, 2.0), filled(3, 3.0)], 4)
    assert padding is not None and padding.tolist() == [3, 0, 2]
    assert (cache.length, cache.capacity) == (5, 9)
    cache.keep([1, 2])
    new = torch.full((2, 2, 1, 16), 8.0)
    keys, values = cache.update(2, new, -new)
    assert keys[:, 1, :, 3].tolist() == [[2, 2, 2, 2, 2, 8], [0, 0, 3, 3, 3, 8]]
    assert torch.equal(keys, -values)


def test_caches_of_one_length_need_no_padding() -> None:
    assert KVCache.joined([filled(2, 1.0), filled(2, 2.0)], 1)[1] is None


def test_same_seed_same_tokens_whatever_else_draws() -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(0))
    sampling = Sampling(temperature=1.5, top_p=0.95, seed=7)

    def draw(disturb: bool) -> list[int]:
        generator = torch.Generator().manual_seed(7)
        tokens = []
        for _ in range(20):
            if disturb:
                torch.rand(3)
            tokens.append(sample(logits, sampling, generator).token)
        return tokens

    assert draw(False) == draw(True)
    assert len(set(draw(False))) > 3


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    generator = torch.Generator().manual_seed(0)
    for top_p, kept in (
        (0.0, {0}),
        (0.5, {0}),
        (0.6, {0, 1}),
        (0.81, {0, 1, 2}),
        (1.0, {0, 1, 2, 3}),
    ):
        sampling = Sampling(temperature=1.0, top_p=top_p, seed=0)
        assert {sample(logits, sampling, generator).token for _ in range(300)} == kept


def test_drawn_frequencies_are_the_probabilities() -> None:
    probabilities = torch.tensor([0.6, 0.3, 0.1])
    generator = torch.Generator().manual_seed(0)
    tokens = [
        sample(probabilities.log(), Sampling(temperature=1.0, seed=0), generator).token
        for _ in range(4000)
    ]
    found = torch.bincount(torch.tensor(tokens), minlength=3) / 4000
    # five standard deviations of a share of 4000 draws, so one chance in a million to be wrong
    assert (found - probabilities).abs().max() < 5 * 0.5 / 4000**0.5


def test_temperature_picks_and_records_a_seed() -> None:
    assert Sampling(temperature=0.7).seeded().seed is not None
    assert Sampling(temperature=0.7, seed=3).seeded().seed == 3
    assert Sampling().seeded().seed is None


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [
        ([1, 2] + [9] * 40, 3),  # endless dots
        ([1, 2, 3, 4] * 10, 4),  # a phrase
        ([7, 8] + list(range(20, 32)) * 5, 14),  # twelve tokens, after a beginning
        ([5] + list(range(100, 200)) * 4, 101),  # a paragraph
    ],
)
def test_guard_stops_a_loop_and_keeps_one_copy(tokens: list[int], kept: int) -> None:
    guard = RepetitionGuard()
    for number, token in enumerate(tokens, 1):
        guard.push(token)
        if guard.looping:
            assert number - guard.held == kept
            return
    pytest.fail("the loop was not found")


@pytest.mark.parametrize(
    "words",
    [
        "two cats and two dogs and two birds",
        "a man in a red shirt and a man in a blue shirt and a man in a green shirt",
        "ha ha ha ha ha ha",
        "1 0 0 0 0 0 0 0",
        "the sign says stop stop stop and the next sign says stop stop stop",
    ],
)
def test_guard_leaves_honest_repetition_alone(words: str) -> None:
    guard = RepetitionGuard()
    numbers: dict[str, int] = {}
    for word in words.split():
        guard.push(numbers.setdefault(word, len(numbers)))
        assert not guard.looping


def test_a_temperature_next_to_nothing_is_none() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0])
    assert sample(logits, Sampling(temperature=1e-320), torch.Generator()).token == 1
