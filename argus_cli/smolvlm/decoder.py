"""The Llama text decoder: embeddings to hidden states. Knows nothing of pictures or sampling.

B sequences, T new positions, S positions in all (cached and new), H hidden size, Q query heads,
K key-value heads, d head size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from argus_cli.smolvlm.cache import KVCache
from argus_cli.smolvlm.config import TextConfig


class RMSNorm(nn.Module):
    """Root-mean-square norm, in float32 inside; the weight is applied after the cast back."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotary_table(
    positions: Tensor, config: TextConfig, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Positions [B or 1, T] -> cos, sin [B or 1, 1, T, d], computed in float32.

    Rotate-half layout over the whole head: frequency i serves dimensions i and i + d/2. The first
    half of sin is negative, which is all that a rotation needs besides a swap of the halves.
    """
    half = torch.arange(0, config.head_dim, 2, device=positions.device).float()
    frequencies = config.rope_theta ** (-half / config.head_dim)
    angles = positions[:, None, :, None].float() * frequencies  # [B, 1, T, d/2]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Apply rotary positions to [B, heads, T, d]."""
    cos, sin = table
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


class Rotary(nn.Module):
    """What turns queries and keys at each position."""

    def __init__(self, config: TextConfig):
        super().__init__()
        self.config = config

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return rotary_table(positions, self.config, dtype)


class Attention(nn.Module):
    """Causal attention with grouped key-value heads."""

    def __init__(self, config: TextConfig):
        super().__init__()
        self.head_dim = config.head_dim
        queries = config.num_attention_heads * config.head_dim
        shared = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, shared, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, shared, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)

    def forward(
        self,
        x: Tensor,
        layer: int,
        table: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: KVCache | None,
    ) -> Tensor:
        """[B, T, H] -> [B, T, H]; without a mask several new positions attend causally."""
        q, k, v = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [B, Q or K, T, d]
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, table), rotate(k, table)
        if cache is not None:
            k, v = cache.update(layer, k, v)
        causal = mask is None and x.shape[1] > 1
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: TextConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, H] -> [B, T, H]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Pre-norm decoder layer."""

    def __init__(self, config: TextConfig):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(
        self,
        x: Tensor,
        layer: int,
        table: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: KVCache | None,
    ) -> Tensor:
        """[B, T, H] -> [B, T, H]."""
        x = x + self.self_attn(self.input_layernorm(x), layer, table, mask, cache)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Embeddings in, normalised hidden states out; the head belongs to the model."""

    def __init__(self, config: TextConfig):
        super().__init__()
        self.rotary = Rotary(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, x: Tensor, cache: KVCache | None = None, padding: Tensor | None = None
    ) -> Tensor:
        """[B, T, H] -> [B, T, H].

        ``padding`` [B] counts the positions at the start of each sequence that are padding:
        nothing attends to them, and the first real position is 0.
        """
        seen = 0 if cache is None else cache.length
        index = torch.arange(seen, seen + x.shape[1], device=x.device)[None]  # [1, T]
        positions = index if padding is None else (index - padding[:, None]).clamp_(min=0)
        table = self.rotary(positions, x.dtype)
        mask = (
            _mask(index[0], padding) if padding is not None or seen and len(index[0]) > 1 else None
        )
        for number, layer in enumerate(self.layers):
            x = layer(x, number, table, mask, cache)
        if cache is not None:
            cache.advance(x.shape[1])
        return self.norm(x)  # type: ignore[no-any-return]


def _mask(queries: Tensor, padding: Tensor | None) -> Tensor:
    """Query positions [T] -> what each may attend to, bool [B or 1, 1, T, S].

    A padding position attends to itself, so that its softmax has something to sum over.
    """
    keys = torch.arange(int(queries[-1]) + 1, device=queries.device)
    allowed = (keys[None, :] <= queries[:, None])[None]  # [1, T, S]
    if padding is not None:
        real = keys[None, None, :] >= padding[:, None, None]
        allowed = allowed & (real | (keys[None, None, :] == queries[None, :, None]))
    return allowed[:, None]
