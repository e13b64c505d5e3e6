"""Cached decoding equals the uncached forward pass; padded batches equal single sequences.

Tolerance 1e-5 of logits of about 1: float32 sums in another order, nothing else differs.
"""

import pytest
import torch
from conftest import TINY, random_model

from argus_cli.smolvlm.cache import KVCache
from argus_cli.smolvlm.config import parse_model
from argus_cli.smolvlm.model import SmolVLM

LENGTHS = (3, 11, 7)


@pytest.fixture(scope="module")
def model() -> SmolVLM:
    return random_model(parse_model(TINY))


def new_cache(model: SmolVLM, batch: int = 1, positions: int = 40) -> KVCache:
    return KVCache(model.config.text, batch, positions, dtype=torch.float32)


def tokens(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(30, 400, (1, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("chunks", [[20], [12, 1, 1, 1, 1, 4], [1] * 20, [7, 13]])
@torch.inference_mode()
def test_cached_equals_uncached(model: SmolVLM, chunks: list[int]) -> None:
    x = model.embed(tokens(20))
    cache = new_cache(model)
    parts = [model(part, cache) for part in x.split(chunks, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(x), rtol=0, atol=1e-5)
    assert cache.length == 20


@torch.inference_mode()
def test_left_padded_batch_equals_singles(model: SmolVLM) -> None:
    rows = [tokens(length, seed) for seed, length in enumerate(LENGTHS)]
    longest = max(LENGTHS)
    padding = torch.tensor([longest - length for length in LENGTHS])
    ids = torch.cat(
        [torch.nn.functional.pad(row, (longest - row.shape[1], 0), value=5) for row in rows]
    )
    singles = [new_cache(model) for _ in rows]
    cache = new_cache(model, len(rows))
    for step in range(6):
        together = model.next_logits(model.embed(ids), cache, padding)
        alone = torch.cat(
            [model.next_logits(model.embed(r), c) for r, c in zip(rows, singles, strict=True)]
        )
        torch.testing.assert_close(together, alone, rtol=0, atol=1e-5, msg=f"step {step}")
        ids = together.argmax(-1, keepdim=True)
        rows = list(ids.split(1))


@torch.inference_mode()
def test_next_logits_are_the_last_of_forward(model: SmolVLM) -> None:
    x = model.embed(tokens(9))
    torch.testing.assert_close(model.next_logits(x), model(x)[:, -1], rtol=0, atol=1e-5)


def test_a_full_cache_refuses(model: SmolVLM) -> None:
    cache = new_cache(model, positions=4)
    with pytest.raises(ValueError, match="holds 4 positions, 5"):
        model(model.embed(tokens(5)), cache)


def test_image_features_must_fit_the_prompt(model: SmolVLM) -> None:
    ids = torch.tensor([[1, model.config.image_token_id, 2]])
    with pytest.raises(ValueError, match="1 image tokens but 4 image features"):
        model.embed(ids, torch.zeros(1, 4, 96))


def test_an_image_token_that_the_model_wrote_is_a_word(model: SmolVLM) -> None:
    token = model.config.image_token_id
    row = model.text_model.embed_tokens.weight[token]
    assert torch.equal(model.embed(torch.tensor([[token]]))[0, 0], row)


@torch.inference_mode()
def test_features_do_not_depend_on_the_other_tiles(model: SmolVLM) -> None:
    tiles = torch.randint(0, 256, (7, 64, 64, 3), dtype=torch.uint8)
    alone = torch.cat([model.encode_tiles(tile[None]) for tile in tiles])
    torch.testing.assert_close(model.encode_tiles(tiles), alone, rtol=0, atol=1e-5)
