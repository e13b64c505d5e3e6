"""Tower, connector and decoder as one model. Tensors in, tensors out.

N tiles, T tile side, S tokens per tile, B sequences, L positions, H text size, V vocabulary.
"""

import torch
from torch import Tensor, nn

from argus_cli.smolvlm.cache import KVCache
from argus_cli.smolvlm.config import ModelConfig
from argus_cli.smolvlm.connector import Connector
from argus_cli.smolvlm.decoder import Decoder
from argus_cli.smolvlm.vision import VisionTower

# Bounds the tower's working memory. On a CPU two tiles win nothing over one, and four lose a tenth
# in the products with large outputs (`argus profile --experiment batching`).
_TILES_AT_ONCE = {"cpu": 1}
_TILES_AT_ONCE_ELSEWHERE = 4


class SmolVLM(nn.Module):
    """Idefics3 / SmolVLM / SmolVLM2 / glimpse."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.vision_model = VisionTower(config.vision)
        self.connector = Connector(config)
        self.text_model = Decoder(config.text)
        self.lm_head = nn.Linear(config.text.hidden_size, config.text.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.text_model.embed_tokens.weight

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.text_model.embed_tokens.weight.dtype

    @property
    def activation_dtype(self) -> torch.dtype:
        """Of what passes through: wider than the decoder's weights where that is faster."""
        return next(self.connector.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return self.text_model.embed_tokens.weight.device

    def encode_tiles(self, tiles: Tensor) -> Tensor:
        """uint8 [N, T, T, 3] -> image features [N, S, H]. Equal tiles, as of a margin, cost one."""
        numbers: dict[bytes, int] = {}
        which = [numbers.setdefault(tile.numpy().tobytes(), len(numbers)) for tile in tiles.cpu()]
        first = [which.index(number) for number in numbers.values()]
        at_once = _TILES_AT_ONCE.get(self.device.type, _TILES_AT_ONCE_ELSEWHERE)
        chunks = torch.split(tiles[first].to(self.device), at_once)
        features = torch.cat([self.connector(self.vision_model(chunk)) for chunk in chunks])
        return features[which]

    def embed(self, ids: Tensor, features: Tensor | None = None) -> Tensor:
        """Token ids [B, L] and image features [N, S, H] -> embeddings [B, L, H].

        The image tokens are replaced, in order, by the features; ValueError when their numbers
        differ. Without features ids are words: an image token that the model wrote is one too.
        """
        x: Tensor = self.text_model.embed_tokens(ids).to(self.activation_dtype)
        if features is None:
            return x
        holes, flat = ids == self.config.image_token_id, features.flatten(0, 1)
        if int(holes.sum()) != len(flat):
            raise ValueError(f"{int(holes.sum())} image tokens but {len(flat)} image features")
        return x.masked_scatter(holes[..., None], flat)

    def forward(
        self, x: Tensor, cache: KVCache | None = None, padding: Tensor | None = None
    ) -> Tensor:
        """Embeddings [B, L, H] -> logits [B, L, V] in the weights' dtype."""
        return self.lm_head(self.text_model(x, cache, padding))  # type: ignore[no-any-return]

    def next_logits(
        self, x: Tensor, cache: KVCache | None = None, padding: Tensor | None = None
    ) -> Tensor:
        """Embeddings [B, L, H] -> logits after the last position, float32 [B, V]."""
        return self.lm_head(self.text_model(x, cache, padding)[:, -1]).float()  # type: ignore[no-any-return]
