"""The model that is profiled: shapes by name, weights if they are here, else random ones."""

from dataclasses import dataclass
from pathlib import Path

import torch

from argus_cli.errors import ModelMissing
from argus_cli.smolvlm.config import (
    ModelConfig,
    PreprocessConfig,
    parse_model,
    parse_preprocess,
    read_config,
    read_json,
)
from argus_cli.smolvlm.kernels import specialise
from argus_cli.smolvlm.model import SmolVLM
from argus_cli.smolvlm.prompt import IMAGE, Piece
from argus_cli.smolvlm.tokenizer import Tokenizer
from argus_cli.smolvlm.weights import hollow_model, load_model
from argus_cli.zoo.catalog import BUNDLED, find, named
from argus_cli.zoo.manifest import models_folder


@dataclass(frozen=True)
class Subject:
    """A model's shapes; ``folder`` holds the rest of it where that is on this machine."""

    name: str
    config: ModelConfig
    preprocess: PreprocessConfig
    folder: Path | None

    def model(self, dtype: torch.dtype, device: torch.device, *, random: bool) -> SmolVLM:
        """Its weights, or seeded random ones where it has none."""
        if self.folder is None or random:
            return specialise(random_model(self.config, dtype, device))
        return load_model(self.folder, self.config, dtype=dtype, device=device)

    def tokenizer(self) -> Tokenizer:
        """Its own, or glimpse's, which is always there and costs about the same."""
        folder = self.folder or models_folder() / BUNDLED
        return Tokenizer(folder / "tokenizer.json", self.config.text.vocab_size)

    def encode(self, tokenizer: Tokenizer, pieces: list[Piece]) -> list[int]:
        """Ids of a prompt, in which image tokens are the model's own whatever the tokenizer."""
        (image,) = tokenizer.encode([IMAGE])
        ids = tokenizer.encode(pieces)
        return [self.config.image_token_id if token == image else token for token in ids]


def open_subject(name: str) -> Subject:
    """A model of the zoo by name, on this machine or not, or one in a folder given by path.

    Raises ModelMissing for a name that argus doesn't know, ModelDamaged for unreadable files.
    """
    try:
        found = find(name)
    except ModelMissing:
        known = named(name).name
        shapes = read_json(models_folder() / known / "shapes.json")
        model = parse_model(shapes["config"])
        return Subject(known, model, parse_preprocess(shapes["preprocessor_config"]), None)
    config = read_config(found.path)
    return Subject(found.name, config.model, config.preprocess, found.path)


def random_model(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> SmolVLM:
    """The plain model with seeded weights, made in ``dtype`` at once: no float32 on the way."""
    model = hollow_model(config)
    generator = torch.Generator(device).manual_seed(0)
    state = {
        name: _random(name, meta.shape, dtype, device, generator)
        for name, meta in model.state_dict().items()
    }
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["text_model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True, assign=True)
    return model.eval().requires_grad_(False)


def _random(
    name: str, shape: torch.Size, dtype: torch.dtype, device: torch.device,
    generator: torch.Generator,
) -> torch.Tensor:  # fmt: skip
    """Small numbers; ones where a norm multiplies with them, so that nothing fades away."""
    tensor = torch.empty(shape, dtype=dtype, device=device)
    if "norm" in name and name.endswith("weight"):
        return tensor.fill_(1)
    return tensor.normal_(0, 0.02, generator=generator)
