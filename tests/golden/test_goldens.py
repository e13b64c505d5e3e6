"""Pixels and prompts equal to the reference's, byte for byte and id for id."""

import hashlib
import json
import lzma
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from argus_cli.smolvlm.config import read_config
from argus_cli.smolvlm.prompt import Message, chat
from argus_cli.smolvlm.tiling import cut_tiles, plan_tiles
from argus_cli.smolvlm.tokenizer import Tokenizer
from argus_cli.smolvlm.vision import VisionTower

HERE = Path(__file__).parent
PIXELS = [
    entry
    for entry in json.loads((HERE / "preprocess.json").read_text())
    if "torchvision" not in entry["processor"]  # another Lanczos, not the one to match
]
PROMPTS = json.loads((HERE / "prompts.json").read_text())
FOLDERS = {"256M-pil": "SmolVLM-256M-Instruct", "2.2B-pil": "SmolVLM-Instruct"}


def formula(name: str) -> np.ndarray:
    """The picture that the goldens call by this name, uint8 [H, W, 3]."""
    if name == "argus_formula":
        y, x = np.mgrid[0:512, 0:512] / 512
        angles = 6 * np.pi * np.stack([x, y, x + y], -1) + (0, 1, 2)
        return np.floor((0.5 + 0.5 * np.sin(angles)).clip(0, 1) * 255 + 0.5).astype(np.uint8)
    width, height = map(int, name[4:].split("x"))
    y, x = np.mgrid[0:height, 0:width].astype(np.uint64)
    if name.startswith("ramp"):
        return np.stack([255 * x // width, 255 * y // height, 0 * x + 128], -1).astype(np.uint8)
    value = 2654435761 * x + 40503 * y + 97 * x * y
    return (np.stack([value >> 3, value >> 7, value >> 11], -1) & 255).astype(np.uint8)


def sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@pytest.mark.parametrize(
    "golden", PIXELS, ids=lambda g: f"{g['image']}-{g['processor']}-{len(g['kwargs'])}"
)
def test_tiles_equal_the_reference(golden: dict) -> None:
    config = read_config(HERE / "hub" / FOLDERS[golden["processor"]])
    split = golden["kwargs"].get("do_image_splitting", True)
    pixels = formula(golden["image"])
    assert sha256(pixels) == golden["input_sha256"]

    grid = plan_tiles(tuple(golden["size_wh"]), replace(config.preprocess, split=split))
    tiles = cut_tiles(Image.fromarray(pixels), grid)

    assert (grid.rows, grid.cols, grid.tiles) == (golden["rows"], golden["cols"], golden["tiles"])
    assert [sha256(tile) for tile in tiles] == golden["tiles_u8_sha256"]

    with torch.device("meta"):
        tower = VisionTower(config.model.vision)
    normalised = tower.normalise(torch.from_numpy(tiles)).numpy()
    assert sha256(normalised) == golden["pixel_values_f32_sha256"]


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """The two tokenizers of the family; the 2.2B v1 one has other added tokens."""
    folder = tmp_path_factory.mktemp("tokenizers")
    raw = json.loads(lzma.decompress((HERE / "tokenizer.json.xz").read_bytes()))
    (folder / "common.json").write_text(json.dumps(raw))
    spellings = ("<fake_token_around_image>", "<image>", "<end_of_utterance>")
    special = raw["added_tokens"][-1]
    raw["added_tokens"] = [token for token in raw["added_tokens"] if token["id"] < 49152] + [
        special | {"id": 49152 + number, "content": text} for number, text in enumerate(spellings)
    ]
    (folder / "SmolVLM-Instruct.json").write_text(json.dumps(raw))
    return {
        "common": Tokenizer(folder / "common.json", 49280),
        "SmolVLM-Instruct": Tokenizer(folder / "SmolVLM-Instruct.json", 49155),
    }


@pytest.mark.parametrize(
    "golden", PROMPTS, ids=lambda g: f"{g['model']}-{g['case']}-{'split' if g['split'] else 'one'}"
)
def test_prompts_equal_the_reference(golden: dict, tokenizers: dict[str, Tokenizer]) -> None:
    config = read_config(HERE / "hub" / golden["model"])
    preprocess = replace(config.preprocess, split=golden["split"])
    grids = iter(plan_tiles(tuple(size), preprocess) for size in golden["sizes"])
    messages = [
        Message(
            turn["role"],
            tuple(p["text"] if p["type"] == "text" else next(grids) for p in turn["content"]),
        )
        for turn in golden["messages"]
    ]
    tokenizer = tokenizers.get(golden["model"], tokenizers["common"])

    ids = tokenizer.encode(chat(messages, config.model.tokens_per_tile))

    assert len(ids) == golden["length"]
    assert ids == [token for token, count in golden["ids_rle"] for _ in range(count)]


def test_spelling_of_a_special_token_in_user_text_stays_text(
    tokenizers: dict[str, Tokenizer],
) -> None:
    for tokenizer in tokenizers.values():
        for spelling in ("<image>", "<|im_start|>", "<end_of_utterance>", "<row_1_col_1>"):
            ids = tokenizer.encode(chat([Message("user", (f"what is {spelling}?",))], 64))
            plain = tokenizer.encode(chat([Message("user", ("what is ?",))], 64))
            assert len(ids) > len(plain) + 2  # one token it would be, were it special
            assert tokenizer.decode(ids).count(spelling) == 1  # special ones vanish


def test_every_checkpoint_of_the_family_has_the_published_shape() -> None:
    """Sizes from the model cards and the tensor lists, see spec/SMOLVLM.md of the project."""
    expected = {
        "SmolVLM-256M-Instruct": (12, 768, 30, 576, 9, 3, 49280, 64, 256_484_928),
        "SmolVLM-500M-Instruct": (12, 768, 32, 960, 15, 5, 49280, 64, 507_482_304),
        "SmolVLM-Instruct": (27, 1152, 24, 2048, 32, 32, 49155, 81, 2_246_272_880),
        "SmolVLM2-256M-Video-Instruct": (12, 768, 30, 576, 9, 3, 49280, 64, 256_484_928),
        "SmolVLM2-500M-Video-Instruct": (12, 768, 32, 960, 15, 5, 49280, 64, 507_482_304),
        "SmolVLM2-2.2B-Instruct": (27, 1152, 24, 2048, 32, 32, 49280, 81, 2_246_784_880),
    }
    from argus_cli.smolvlm.model import SmolVLM

    for name, numbers in expected.items():
        config = read_config(HERE / "hub" / name).model
        with torch.device("meta"):
            parameters = sum(p.numel() for p in SmolVLM(config).parameters())
        assert numbers == (
            config.vision.num_hidden_layers, config.vision.hidden_size,
            config.text.num_hidden_layers, config.text.hidden_size,
            config.text.num_attention_heads, config.text.num_key_value_heads,
            config.text.vocab_size, config.tokens_per_tile, parameters,
        ), name  # fmt: skip
        assert config.reads_video == name.startswith("SmolVLM2")


def test_no_spelling_of_an_added_token_becomes_one_in_text(
    tokenizers: dict[str, Tokenizer],
) -> None:
    for tokenizer in tokenizers.values():
        added = tokenizer._inner.get_added_tokens_decoder()
        text = " ".join(token.content for token in added.values())
        assert len(added) > 10 and "<|im_end|>" in text and "<fake_token_around_image>" in text
        assert not added.keys() & set(tokenizer.encode([text]))
