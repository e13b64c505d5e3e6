"""One preallocated key-value cache for all layers, made by the caller and passed down.

B sequences, K key-value heads, S positions at most, d head size, T new positions.
"""

import torch
from torch import Tensor

from argus_cli.smolvlm.config import TextConfig


class KVCache:
    """Keys and values of the positions seen so far."""

    def __init__(
        self,
        config: TextConfig,
        batch: int,
        positions: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ):
        shape = (
            config.num_hidden_layers, 2, batch,
            config.num_key_value_heads, positions, config.head_dim,
        )  # fmt: skip
        self._store = torch.empty(shape, dtype=dtype, device=device)
        self.length = 0

    @property
    def capacity(self) -> int:
        return self._store.shape[4]

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store [B, K, T, d] after what is there; return all of them, [B, K, length + T, d].

        Call ``advance`` once every layer has stored its part. Raises ValueError when full.
        """
        end = self.length + keys.shape[2]
        if end > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} positions, {end} were asked for")
        held = self._store[layer]
        held[0, :, :, self.length : end] = keys
        held[1, :, :, self.length : end] = values
        return held[0, :, :, :end], held[1, :, :, :end]

    def advance(self, positions: int) -> None:
        """Count ``positions`` as seen."""
        self.length += positions
