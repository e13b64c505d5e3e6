"""The CPU's fast forms of attention and MLP, put in place of the plain ones once, at load.

``specialise`` is the one place that decides. Each fast module is built from a plain one of
vision.py or decoder.py, which is its reference twin: same input, same output up to rounding. They
use what PyTorch carries: oneDNN's linear with a weight packed beforehand and the activation fused
into it (the operators of torch's own compiler back end), one product for what reads the same
input, and a decode step whose attention is two small products.

B sequences, T new positions, S positions in all, K key-value heads, d head size, D and H hidden
sizes, N tiles, P patches.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from argus_cli.device import has_fast_bfloat16
from argus_cli.errors import UsageError
from argus_cli.smolvlm import decoder, stem, vision
from argus_cli.smolvlm.cache import KVCache
from argus_cli.smolvlm.model import SmolVLM

# Patches. The best of 128, 256, 512 and all in float32 on two cores with AVX-512: 336 against 316
# GFLOP/s for all (`argus profile --experiment mlp-blocks`).
_MLP_ROWS = 512


def specialise(model: SmolVLM, *, int8: bool = False, widen: bool | None = None) -> SmolVLM:
    """Replace what has a faster form on the model's device; elsewhere leave it as it is.

    ``widen`` computes in float32 with weights of bfloat16: a tower, a connector and a prompt are
    bound by their products, a decoded token by the memory it reads, so that only the decoder's
    weights stay as they are. None does it where bfloat16 is multiplied slower than float32.
    ``int8`` holds the decoder's weights in 8 bits: a token then costs half the memory traffic or
    less, and is no longer the same to the last digit. Raises UsageError where that can't be had.
    """
    if model.device.type != "cpu" or not has_onednn(model.dtype):
        if int8:
            raise UsageError("--quantize int8: only for a CPU whose torch has oneDNN")
        return model
    if widen is None:
        widen = not has_fast_bfloat16(model.device)
    narrow = widen and model.dtype == torch.bfloat16
    if narrow:
        model.vision_model.float()
        model.connector.float()
    linear = Int8Linear if int8 else NarrowLinear if narrow else decoder_linear
    fast: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
        stem.SameConv: SameConv,
        vision.VisionAttention: VisionAttention,
        vision.VisionMLP: VisionMLP,
        decoder.RMSNorm: RMSNorm,
        decoder.Rotary: Rotary,
        decoder.Attention: partial(Attention, linear=linear),
        decoder.MLP: partial(MLP, linear=linear),
    }
    places = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) in fast
    ]
    for parent, name in places:  # one by one, so that no more than one is there twice
        plain = getattr(parent, name)
        setattr(parent, name, fast[type(plain)](plain))
    if int8 or narrow:
        model.lm_head = linear(model.lm_head.weight)  # type: ignore[assignment]
    return model


def has_onednn(dtype: torch.dtype) -> bool:
    """Whether this build of torch has the fused operators in ``dtype``; a fast path, not a need."""
    x = torch.zeros(1, 16, 8, 8, dtype=dtype)
    how: tuple[Any, ...] = ([0, 0], [1, 1], [1, 1], 1, "none", [], "")
    try:
        PackedLinear(torch.zeros(16, 16, dtype=dtype), None, "gelu")(x[..., 0, 0])
        torch.ops.mkldnn._convolution_pointwise(x, x[:, :, :1, :1].contiguous(), None, *how)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return True


class SameConv(nn.Module):
    """stem.SameConv with ReLU6 inside the convolution, and its padding too where it is even."""

    def __init__(self, plain: stem.SameConv):
        super().__init__()
        self.weight, self.bias = plain.weight.detach(), plain.bias
        before, after, *_ = self.same = plain.same
        self.outside = before != after
        padding = [0, 0] if self.outside else [before, before]
        activation = ("hardtanh", [0.0, 6.0], "") if plain.relu6 else ("none", [], "")
        self.how = (padding, list(plain.stride), [1, 1], plain.groups, *activation)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, h, w] -> [N, C', h', w']."""
        x = F.pad(x, self.same) if self.outside else x
        return torch.ops.mkldnn._convolution_pointwise(  # type: ignore[no-any-return]
            x, self.weight, self.bias, *self.how
        )


class PackedLinear(nn.Module):
    """x @ weight.T + bias and an activation, in one oneDNN call on a weight in its own layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str = "none"):
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self.bias, self.activation = bias, activation
        self.algorithm = "tanh" if activation == "gelu" else ""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return torch.ops.mkldnn._linear_pointwise(  # type: ignore[no-any-return]
            x, self.weight, self.bias, self.activation, [], self.algorithm
        )


class Linear(nn.Module):
    """The plain product, which for one row of float32 reads memory fastest."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return F.linear(x, self.weight)


class StoredLinear(nn.Module):
    """The plain product on weights held in fewer bits than ``x``, for the sake of the memory read.

    A few rows, as when tokens are written, are what an embedding bag computes: a weighted sum of
    a table's rows, here those of the transposed weight, cut into blocks of columns that threads
    share. PyTorch's kernel for it (FBGEMM's) reads memory ahead: 23 GB/s in 16 bits and 20 in 8 on
    two cores, where the products made for such weights reached 18 and 13. Many rows, as in a
    prompt, pay for the weight's way back to ``x``'s dtype.
    """

    few = 16
    dtype: torch.dtype  # of what is multiplied with the table

    def __init__(self, weight: Tensor):
        super().__init__()
        self.outputs, self.inputs = weight.shape
        columns = bag_columns(self.outputs, torch.get_num_threads())
        self.blocks = self.outputs // columns
        blocks = weight.view(self.blocks, columns, self.inputs).transpose(1, 2)
        self.table = self.stored(blocks.flatten(0, 1))

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        rows = x.shape[:-1].numel()
        if rows > self.few:
            blocks = self.floats().view(self.blocks, self.inputs, -1)
            weight = x.new_empty(self.inputs, self.blocks, blocks.shape[-1])
            weight.transpose(0, 1).copy_(blocks)
            return x @ weight.flatten(1)
        shares = x.new_empty(self.blocks, rows, self.inputs, dtype=self.dtype)
        shares.copy_(x.reshape(rows, self.inputs))
        sums = self.summed(*bags(self.blocks, rows, self.inputs), shares.view(-1))
        y = sums.view(self.blocks, rows, -1).transpose(0, 1)
        return y.reshape(*x.shape[:-1], self.outputs).to(x.dtype)

    def stored(self, table: Tensor) -> Tensor:
        """The table [blocks * in, columns] as it is held."""
        raise NotImplementedError

    def floats(self) -> Tensor:
        """What is held as a table [blocks * in, columns] again."""
        raise NotImplementedError

    def summed(self, index: Tensor, starts: Tensor, shares: Tensor) -> Tensor:
        """Sums of rows ``index`` of the table times ``shares``, from each start on: [bags,
        columns]."""
        raise NotImplementedError


def bag_columns(outputs: int, threads: int) -> int:
    """Columns of a block: each thread has as many blocks as the others, in whole registers of 16
    numbers if that can be, and as long as one pass of the kernel takes (384, measured)."""

    def fitness(columns: int) -> tuple[bool, float, int]:
        blocks = outputs // columns
        return columns % 16 == 0, blocks / (-(-blocks // threads) * threads), columns

    return max((n for n in range(1, min(outputs, 384) + 1) if outputs % n == 0), key=fitness)


@cache
def bags(blocks: int, rows: int, inputs: int) -> tuple[Tensor, Tensor]:
    """Which rows of a table are summed for each block and row of input, and where each sum begins.

    The same block for all rows of input one after the other, so that it is read once.
    """
    index = torch.arange(blocks * inputs, dtype=torch.int32).view(blocks, 1, inputs)
    starts = torch.arange(0, blocks * rows * inputs, inputs, dtype=torch.int32)
    return index.expand(blocks, rows, inputs).reshape(-1), starts


class NarrowLinear(StoredLinear):
    """On weights of bfloat16, with which ``x`` is multiplied in bfloat16."""

    dtype = torch.bfloat16

    def stored(self, table: Tensor) -> Tensor:
        return table.contiguous()

    def floats(self) -> Tensor:
        return self.table

    def summed(self, index: Tensor, starts: Tensor, shares: Tensor) -> Tensor:
        how = (False, 0, False)  # gradients by frequency, mode: sum, sparse gradients
        sums, *_ = torch.ops.aten._embedding_bag_forward_only(
            self.table, index, starts, *how, shares
        )
        return sums  # type: ignore[no-any-return]


class Int8Linear(StoredLinear):
    """On weights of 8 bits: a scale and a zero for each input and block, of weights divided by
    their output's largest, for outputs differ more than inputs do. ``x`` stays as it is."""

    dtype = torch.float32

    def stored(self, table: Tensor) -> Tensor:
        blocks = table.float().view(self.blocks, self.inputs, -1)
        self.scale = blocks.abs().amax(1, keepdim=True).clamp_(min=1e-12)
        return torch.ops.quantized.embedding_bag_byte_prepack(  # type: ignore[no-any-return]
            (blocks / self.scale).flatten(0, 1)
        )

    def floats(self) -> Tensor:
        return self._scaled(torch.ops.quantized.embedding_bag_byte_unpack(self.table))

    def summed(self, index: Tensor, starts: Tensor, shares: Tensor) -> Tensor:
        how = (False, 0, False)  # gradients by frequency, mode: sum, pruned
        return self._scaled(
            torch.ops.quantized.embedding_bag_byte_rowwise_offsets(
                self.table, index, starts, *how, shares
            )
        )

    def _scaled(self, rows: Tensor) -> Tensor:
        """[blocks * n, columns], each column times its output's scale."""
        return rows.view(self.blocks, -1, rows.shape[-1]).mul_(self.scale).flatten(0, 1)


def stacked(*layers: nn.Linear) -> Tensor:
    """The weight of several linears on one input as that of one."""
    return torch.cat(tuple(layer.weight for layer in layers))


class VisionAttention(nn.Module):
    """vision.VisionAttention with one product for q, k and v."""

    def __init__(self, plain: vision.VisionAttention):
        super().__init__()
        self.heads, self.head_dim = plain.heads, plain.head_dim
        layers = (plain.q_proj, plain.k_proj, plain.v_proj)
        bias = torch.cat(tuple(layer.bias for layer in layers))
        self.qkv_proj = PackedLinear(stacked(*layers), bias)
        self.out_proj = PackedLinear(plain.out_proj.weight, plain.out_proj.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[N, P, D] -> [N, P, D]."""
        qkv = self.qkv_proj(x).unflatten(-1, (3, self.heads, self.head_dim))
        # Contiguous, which costs less than the attention saves (164 against 179 ms for 12 layers).
        q, k, v = qkv.permute(2, 0, 3, 1, 4).contiguous()  # [N, heads, P, d]
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class VisionMLP(nn.Module):
    """vision.VisionMLP with the activation inside the first product."""

    def __init__(self, plain: vision.VisionMLP):
        super().__init__()
        self.fc1 = PackedLinear(plain.fc1.weight, plain.fc1.bias, "gelu")
        self.fc2 = PackedLinear(plain.fc2.weight, plain.fc2.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[N, P, D] -> [N, P, D], some rows at a time, so that what lies between stays cached."""
        rows = torch.split(x.flatten(0, 1), _MLP_ROWS)
        return torch.cat([self.fc2(self.fc1(some)) for some in rows]).view_as(x)


def decoder_linear(weight: Tensor) -> nn.Module:
    """A product for one row as for many, packed where that reads memory faster."""
    return Linear(weight) if weight.dtype == torch.float32 else PackedLinear(weight, None)


class RMSNorm(nn.Module):
    """decoder.RMSNorm in fewer passes: the root of the sum of squares is one of them."""

    def __init__(self, plain: decoder.RMSNorm):
        super().__init__()
        root = len(plain.weight) ** 0.5
        self.weight = plain.weight.float() * root
        self.least = torch.tensor(plain.eps**0.5 * root)

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        return (wide / torch.hypot(length, self.least)).mul_(self.weight).to(x.dtype)


class Rotary(nn.Module):
    """decoder.Rotary as complex numbers, which turn what they are multiplied with."""

    def __init__(self, plain: decoder.Rotary):
        super().__init__()
        self.config = plain.config

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """Positions [B or 1, T] -> complex64 [B or 1, T, Q + 2 K, d/2]; values turn by nothing."""
        cos, sin = decoder.rotary_table(positions, self.config, torch.float32)
        half = self.config.head_dim // 2
        turns = torch.complex(cos[..., half:], sin[..., half:]).transpose(1, 2)
        shared = self.config.num_key_value_heads
        turning = turns.expand(-1, -1, self.config.num_attention_heads + shared, -1)
        return F.pad(turning, (0, 0, 0, shared), value=1.0)


def paired(weight: Tensor, head_dim: int) -> Tensor:
    """Rows of q_proj or k_proj in another order: what rotates together, side by side.

    Queries and keys in the same order have the same products.
    """
    return weight.view(-1, 2, head_dim // 2, weight.shape[1]).transpose(1, 2).flatten(0, 2)


class Attention(nn.Module):
    """decoder.Attention with one product for q, k and v, rotated together as complex numbers."""

    def __init__(self, plain: decoder.Attention, linear: Callable[[Tensor], nn.Module]):
        super().__init__()
        d = self.head_dim = plain.head_dim
        self.heads = [
            layer.out_features // d for layer in (plain.q_proj, plain.k_proj, plain.v_proj)
        ]
        q, k = (paired(layer.weight, d) for layer in (plain.q_proj, plain.k_proj))
        self.qkv_proj = linear(torch.cat((q, k, plain.v_proj.weight)))
        self.o_proj = linear(plain.o_proj.weight)

    def forward(
        self,
        x: Tensor,
        layer: int,
        turns: Tensor,
        mask: Tensor | None,
        cache: KVCache | None,
    ) -> Tensor:
        """[B, T, H] -> [B, T, H]; without a mask several new positions attend causally."""
        qkv = self.qkv_proj(x).float()
        torch.view_as_complex(qkv.unflatten(-1, (-1, self.head_dim // 2, 2))).mul_(turns)
        heads = qkv.to(x.dtype).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q, k, v = torch.split(heads, self.heads, 1)  # [B, Q or K, T, d]
        if cache is not None:
            k, v = cache.update(layer, k, v)
        if x.shape[1] == 1:
            # The queries of a group become the rows of one product, that reads the keys once.
            q = q.reshape(len(q), k.shape[1], -1, self.head_dim)  # [B, K, Q / K, d]
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).flatten(1)[:, None]
        else:
            mixed = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
            )
            mixed = mixed.transpose(1, 2).flatten(2)
        return self.o_proj(mixed)  # type: ignore[no-any-return]


class MLP(nn.Module):
    """decoder.MLP with one product for gate and up."""

    def __init__(self, plain: decoder.MLP, linear: Callable[[Tensor], nn.Module]):
        super().__init__()
        self.gate_up_proj = linear(stacked(plain.gate_proj, plain.up_proj))
        self.down_proj = linear(plain.down_proj.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, H] -> [B, T, H]."""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)  # type: ignore[no-any-return]
