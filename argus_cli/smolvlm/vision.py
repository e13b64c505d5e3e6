"""The SigLIP vision tower: uint8 tiles to patch features. Knows nothing of files or text.

Equal to transformers' Idefics3VisionTransformer on whole tiles, where every patch is valid and
the position ids are 0..P-1.

N tiles, T pixels per side, p pixels per patch side, G = T // p, P = G * G patches, D hidden size,
K heads, d = D / K.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from argus_cli.smolvlm.config import VisionConfig
from argus_cli.smolvlm.stem import ConvStem


class PatchEmbedding(nn.Conv2d):
    """A convolution whose stride is its kernel, written as the one matrix product that it is."""

    def __init__(self, config: VisionConfig):
        super().__init__(3, config.hidden_size, config.patch_size, config.patch_size)
        self.grid, self.patch = config.grid, config.patch_size

    def forward(self, pixels: Tensor) -> Tensor:
        """[N, 3, T, T] -> [N, P, D]; the last T - G*p pixels of a side are dropped."""
        n, side = len(pixels), self.grid * self.patch
        x = pixels[:, :, :side, :side].reshape(n, 3, self.grid, self.patch, self.grid, self.patch)
        x = x.permute(0, 2, 4, 1, 3, 5).reshape(n, self.grid**2, -1)  # [N, P, 3*p*p]
        return F.linear(x, self.weight.flatten(1), self.bias)


class VisionEmbeddings(nn.Module):
    """Patch embedding plus learned positions."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.patch_embedding = (
            PatchEmbedding(config)
            if config.stem is None
            else ConvStem(config.stem, config.hidden_size)
        )
        self.position_embedding = nn.Embedding(config.grid**2, config.hidden_size)

    def forward(self, pixels: Tensor) -> Tensor:
        """[N, 3, T, T] -> [N, P, D]."""
        x: Tensor = self.patch_embedding(pixels)
        return x + self.position_embedding.weight


class VisionAttention(nn.Module):
    """Bidirectional attention over all patches of a tile."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        size = config.hidden_size
        self.heads, self.head_dim = config.num_attention_heads, config.head_dim
        self.q_proj = nn.Linear(size, size)
        self.k_proj = nn.Linear(size, size)
        self.v_proj = nn.Linear(size, size)
        self.out_proj = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        """[N, P, D] -> [N, P, D]."""
        q, k, v = (
            project(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)  # [N, K, P, d]
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class VisionMLP(nn.Module):
    """Two linears around GELU in its tanh form."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """[N, P, D] -> [N, P, D]."""
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))  # type: ignore[no-any-return]


class VisionLayer(nn.Module):
    """Pre-norm transformer layer."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.self_attn = VisionAttention(config)
        self.layer_norm2 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.mlp = VisionMLP(config)

    def forward(self, x: Tensor) -> Tensor:
        """[N, P, D] -> [N, P, D]."""
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))  # type: ignore[no-any-return]


class VisionEncoder(nn.Module):
    """The stack of layers."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.layers = nn.ModuleList(VisionLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, x: Tensor) -> Tensor:
        """[N, P, D] -> [N, P, D]."""
        for layer in self.layers:
            x = layer(x)
        return x


class VisionTower(nn.Module):
    """Tiles to patch features."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.embeddings = VisionEmbeddings(config)
        self.encoder = VisionEncoder(config)
        self.post_layernorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, tiles: Tensor) -> Tensor:
        """uint8 [N, T, T, 3] -> [N, P, D] in the weights' dtype."""
        return self.encode(self.embeddings(self.normalise(tiles)))

    def normalise(self, tiles: Tensor) -> Tensor:
        """uint8 [N, T, T, 3] -> [N, 3, T, T] in -1..1; float32 first, as the reference does."""
        pixels = tiles.permute(0, 3, 1, 2).float().div_(127.5).sub_(1)
        return pixels.to(self.post_layernorm.weight.dtype)

    def encode(self, x: Tensor) -> Tensor:
        """Embedded patches [N, P, D] -> features [N, P, D]."""
        return self.post_layernorm(self.encoder(x))  # type: ignore[no-any-return]
