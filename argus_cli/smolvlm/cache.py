"""One preallocated key-value cache for all layers, made by the caller and passed down.

B sequences, K key-value heads, S positions at most, d head size, T new positions.
"""

from collections.abc import Sequence
from copy import copy

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

    def select(self, rows: Tensor) -> "KVCache":
        """A copy that holds the sequences ``rows`` [B'], in that order; one may be there twice."""
        chosen = copy(self)
        chosen._store = self._store.index_select(2, rows)
        return chosen

    def keep(self, rows: Sequence[int]) -> None:
        """Hold the sequences ``rows`` alone, which rise; the memory stays, the others are lost."""
        for place, row in enumerate(rows):
            if place != row:
                held = self._store[:, :, :, :, : self.length]
                held[:, :, place] = held[:, :, row]
        self._store = self._store[:, :, : len(rows)]

    @classmethod
    def joined(cls, caches: Sequence["KVCache"], more: int) -> tuple["KVCache", Tensor | None]:
        """Caches of one sequence each as one that has room for ``more`` positions.

        They are aligned at their ends; ``padding`` [B] counts the positions before each that hold
        nothing, None where that is so for none.
        """
        length = max(cache.length for cache in caches)
        padding = [length - cache.length for cache in caches]
        first = caches[0]._store
        layers, pair, _, heads, _, size = first.shape
        joined = copy(caches[0])
        joined.length = length
        joined._store = first.new_empty(layers, pair, len(caches), heads, length + more, size)
        for row, (cache, empty) in enumerate(zip(caches, padding, strict=True)):
            place = joined._store[:, :, row]
            place[..., :empty, :] = 0  # attention weighs them with 0, and 0 times NaN is NaN
            place[..., empty:length, :] = cache._store[:, :, 0, :, : cache.length]
        return joined, torch.tensor(padding, device=first.device) if any(padding) else None
