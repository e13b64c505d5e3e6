"""Every part of the network against transformers on tiny random configurations.

Tolerances: float32, a few hundred additions a value, so a few units in the sixth digit of the
largest value; 1e-5 of it leaves room for another order of summation, and an error in the
arithmetic is a thousand times larger.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from argus_cli.smolvlm.cache import KVCache
from argus_cli.smolvlm.config import parse_model, read_json
from argus_cli.smolvlm.connector import pixel_shuffle
from argus_cli.smolvlm.model import SmolVLM
from argus_cli.smolvlm.weights import load_model

transformers = pytest.importorskip("transformers", reason="the reference, a development dependency")

# heads, key-value heads, tile, patch, scale: as in 256M; as in 2.2B (no grouping, odd rest of 384)
SHAPES = {"grouped": (6, 2, 64, 8, 2), "plain": (4, 4, 50, 7, 7)}


def reference(kind: str, shape: str) -> torch.nn.Module:
    heads, shared, tile, patch, scale = SHAPES[shape]
    name = {"smolvlm": "SmolVLM", "idefics3": "Idefics3"}[kind]
    config = getattr(transformers, f"{name}Config")(
        vision_config={
            "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
            "num_attention_heads": 4, "image_size": tile, "patch_size": patch,
        },
        text_config={
            "model_type": "llama", "hidden_size": heads * 16, "intermediate_size": 160,
            "num_hidden_layers": 3, "num_attention_heads": heads, "num_key_value_heads": shared,
            "head_dim": 16, "vocab_size": 300, "rope_theta": 1e5, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 512,
        },
        scale_factor=scale, image_token_id=299, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(1)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.08)
    return model


@pytest.fixture(scope="module", params=[(k, s) for k in ("idefics3", "smolvlm") for s in SHAPES])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[torch.nn.Module, SmolVLM]:
    """The reference, saved by transformers, and ours, loaded from that."""
    theirs = reference(*request.param)
    folder = tmp_path_factory.mktemp("checkpoint")
    theirs.save_pretrained(folder)
    config = parse_model(read_json(folder / "config.json"))
    return theirs, load_model(folder, config, dtype=torch.float32)


def close(ours: Tensor, theirs: Tensor) -> bool:
    assert ours.shape == theirs.shape
    return bool((ours - theirs).abs().max() <= 1e-5 * theirs.abs().max())


def tiles_of(model: SmolVLM, number: int) -> tuple[Tensor, Tensor]:
    """Random tiles, and the pixel values that the reference's processor would make of them."""
    side = model.config.vision.image_size
    generator = torch.Generator().manual_seed(2)
    tiles = torch.randint(0, 256, (number, side, side, 3), dtype=torch.uint8, generator=generator)
    return tiles, (tiles.permute(0, 3, 1, 2).float() / 127.5 - 1)[None]


def prompt_of(model: SmolVLM, tiles: int) -> Tensor:
    words = torch.randint(0, 290, (1, 20), generator=torch.Generator().manual_seed(3))
    images = torch.full((1, tiles * model.config.tokens_per_tile), 299)
    return torch.cat([words[:, :5], images, words[:, 5:]], 1)


@torch.inference_mode()
def test_tower(pair: tuple[torch.nn.Module, SmolVLM]) -> None:
    theirs, ours = pair
    tiles, pixels = tiles_of(ours, 6)
    expected = theirs.model.vision_model(pixels[0]).last_hidden_state
    assert close(ours.vision_model(tiles), expected)


@torch.inference_mode()
def test_image_features(pair: tuple[torch.nn.Module, SmolVLM]) -> None:
    theirs, ours = pair
    tiles, pixels = tiles_of(ours, 6)  # more than go through the tower at once
    expected = theirs.model.get_image_features(pixel_values=pixels).pooler_output
    assert close(ours.encode_tiles(tiles).flatten(0, 1), torch.cat(list(expected)).flatten(0, -2))


@torch.inference_mode()
def test_logits(pair: tuple[torch.nn.Module, SmolVLM]) -> None:
    theirs, ours = pair
    tiles, pixels = tiles_of(ours, 2)
    ids = prompt_of(ours, 2)
    expected = theirs(input_ids=ids, pixel_values=pixels).logits
    assert close(ours(ours.embed(ids, ours.encode_tiles(tiles))), expected)


@torch.inference_mode()
def test_greedy_tokens(pair: tuple[torch.nn.Module, SmolVLM]) -> None:
    theirs, ours = pair
    tiles, pixels = tiles_of(ours, 2)
    ids = prompt_of(ours, 2)
    expected = theirs.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=pixels,
        max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0,
    )[0, ids.shape[1] :]  # fmt: skip
    cache = KVCache(ours.config.text, 1, ids.shape[1] + 20, dtype=torch.float32)
    x, tokens = ours.embed(ids, ours.encode_tiles(tiles)), []
    for _ in range(20):
        tokens.append(int(ours.next_logits(x, cache).argmax()))
        x = ours.embed(torch.tensor([tokens[-1:]]))
    assert tokens == expected.tolist()


@torch.inference_mode()
@pytest.mark.parametrize("scale", [2, 3, 4])
def test_pixel_shuffle(scale: int) -> None:
    from transformers.models.idefics3.modeling_idefics3 import Idefics3Connector

    x = torch.randn(2, (scale * 3) ** 2, 5)
    expected = Idefics3Connector.pixel_shuffle(None, x, scale)
    assert torch.equal(pixel_shuffle(x, scale), expected)


def test_published_pixel_shuffle() -> None:
    """The weight-free golden of franken_ocr's SmolVLM2 fixtures (commit 5847deef)."""
    import hashlib

    def sha256(x: Tensor) -> str:
        return hashlib.sha256(x.contiguous().numpy().tobytes()).hexdigest()

    x = (((torch.arange(1024 * 768) % 17) - 8) * 0.125).view(1, 1024, 768)
    assert sha256(x) == "13c50560711613d6d47b0bff4ebfbec0d37754d12b732b8709fcd3de29a629af"
    assert (
        sha256(pixel_shuffle(x, 4))
        == "26c363314d4177468e96578327ff47f1472496126c4db9515de48b7771997ff5"
    )


def test_reference_version(tmp_path: Path) -> None:
    assert transformers.__version__ == "5.24.0"
