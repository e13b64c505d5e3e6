"""What the tests share: a tiny model of the family as a folder, pictures, a clean environment."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from argus_cli.smolvlm.config import ModelConfig, parse_model
from argus_cli.smolvlm.model import SmolVLM

SPECIALS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<global-img>",
    *(f"<row_{row}_col_{col}>" for row in range(1, 5) for col in range(1, 5)),
    "<fake_token_around_image>", "<image>", "<end_of_utterance>",
]  # fmt: skip

TINY = {
    "model_type": "idefics3",
    "image_token_id": SPECIALS.index("<image>"),
    "scale_factor": 2,
    "tie_word_embeddings": False,
    "text_config": {
        "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 400,
        "max_position_embeddings": 512, "rope_theta": 1e5, "rms_norm_eps": 1e-5,
    },
    "vision_config": {
        "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_channels": 3, "image_size": 64, "patch_size": 16,
        "layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh",
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the developer's models, token or settings."""
    for name in ("ARGUS_MODEL", "ARGUS_DEBUG", "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))


def random_model(config: ModelConfig, seed: int = 0) -> SmolVLM:
    """Seeded weights, large enough that every part of the network moves the result."""
    torch.manual_seed(seed)
    model = SmolVLM(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.08)
    return model


def save_tokenizer(path: Path) -> None:
    """A byte-level BPE with the family's special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[AddedToken(text, normalized=False, special=True) for text in SPECIALS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["User: Describe this image.\nAssistant: A dog runs."], trainer)
    tokenizer.save(str(path))


def save_checkpoint(folder: Path, model: SmolVLM, config: dict = TINY) -> Path:
    """A model folder as the hub would give it."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        name if name.startswith("lm_head") else f"model.{name}": tensor.contiguous()
        for name, tensor in model.state_dict().items()
    }
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    save_tokenizer(folder / "tokenizer.json")
    files = {
        "config.json": config,
        "generation_config.json": {"eos_token_id": SPECIALS.index("<end_of_utterance>")},
        "preprocessor_config.json": {
            "do_image_splitting": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
            "max_image_size": {"longest_edge": 64}, "size": {"longest_edge": 256}, "resample": 1,
        },
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with random weights, milliseconds a picture."""
    folder = tmp_path_factory.mktemp("zoo") / "tiny"
    return save_checkpoint(folder, random_model(parse_model(TINY)))


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A JPEG of 90x60 pixels."""
    path = tmp_path / "photo.jpg"
    draw(90, 60).save(path, quality=95)
    return path


def draw(width: int, height: int, seed: int = 0) -> Image.Image:
    """A smooth random picture."""
    noise = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)
