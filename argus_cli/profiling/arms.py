"""The experiments and their arms: a new arm is one small function in one table.

N tiles, P patches, D hidden size, F MLP size, K heads, d head size. An arm takes the inputs,
prepares what a model would prepare once, and returns the work.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from argus_cli.errors import UsageError
from argus_cli.profiling.batching import batching
from argus_cli.profiling.experiment import (
    Arm,
    Bench,
    Experiment,
    Result,
    Row,
    Unavailable,
    Work,
    fastest_arm,
    small_model,
)
from argus_cli.profiling.flops import tower_costs
from argus_cli.smolvlm.cache import KVCache
from argus_cli.smolvlm.kernels import PackedLinear, has_onednn, specialise
from argus_cli.smolvlm.model import SmolVLM

gelu = partial(F.gelu, approximate="tanh")


def layer_flops(*stages: str) -> Callable[[Bench], float]:
    """Operations of these stages in one layer of the tower."""

    def count(bench: Bench) -> float:
        costs = tower_costs(bench.config, bench.tiles, bench.dtype.itemsize)
        return sum(costs[stage].flops for stage in stages) / bench.config.vision.num_hidden_layers

    return count


# ---- one linear and its activation, one MLP


@dataclass(frozen=True)
class MLPInputs:
    """x [N*P, D] and the two linears of a layer."""

    x: Tensor
    fc1: tuple[Tensor, Tensor]  # [F, D], [F]
    fc2: tuple[Tensor, Tensor]  # [D, F], [D]


def mlp_inputs(bench: Bench) -> MLPInputs:
    width, hidden = bench.config.vision.hidden_size, bench.config.vision.intermediate_size
    return MLPInputs(
        bench.noise(bench.rows, width),
        (bench.noise(hidden, width, scale=0.02), bench.noise(hidden, scale=0.02)),
        (bench.noise(width, hidden, scale=0.02), bench.noise(width, scale=0.02)),
    )


def packed(linear: tuple[Tensor, Tensor], activation: str = "none") -> Callable[[Tensor], Tensor]:
    """The model's own linear over a weight laid out once for oneDNN."""
    weight, bias = linear
    if weight.device.type != "cpu" or not has_onednn(weight.dtype):
        raise Unavailable("oneDNN's packed linear isn't here")
    return PackedLinear(weight, bias, activation)


def linear_then_gelu(i: MLPInputs) -> Work:
    return lambda: gelu(F.linear(i.x, *i.fc1))


def linear_then_gelu_in_float32(i: MLPInputs) -> Work:
    return lambda: gelu(F.linear(i.x, *i.fc1).float()).to(i.x.dtype)


def packed_then_gelu(i: MLPInputs) -> Work:
    fc1 = packed(i.fc1)
    return lambda: gelu(fc1(i.x))


def packed_with_gelu(i: MLPInputs) -> Work:
    fc1 = packed(i.fc1, "gelu")
    return lambda: fc1(i.x)


def plain_mlp(i: MLPInputs, block: int | None = None) -> Work:
    return _in_blocks(i, block, lambda x: F.linear(gelu(F.linear(x, *i.fc1)), *i.fc2))


def packed_mlp(i: MLPInputs, block: int | None = None) -> Work:
    fc1, fc2 = packed(i.fc1, "gelu"), packed(i.fc2)
    return _in_blocks(i, block, lambda x: fc2(fc1(x)))


def _in_blocks(i: MLPInputs, block: int | None, mlp: Callable[[Tensor], Tensor]) -> Work:
    if block is None:
        return lambda: mlp(i.x)

    def run() -> Tensor:
        out = torch.empty_like(i.x)
        for x, y in zip(torch.split(i.x, block), torch.split(out, block), strict=True):
            y.copy_(mlp(x))
        return out

    return run


def mlp_arms(_: Bench) -> tuple[Arm[MLPInputs], ...]:
    blocks = (None, 512, 256, 128)
    return tuple(
        Arm(
            f"{name}, {f'{block} rows at a time' if block else 'all rows'}",
            partial(arm, block=block),
        )
        for name, arm in (("plain", plain_mlp), ("packed, GELU fused", packed_mlp))
        for block in blocks
    )


# ---- attention


@dataclass(frozen=True)
class Heads:
    """q, k, v [N, K, P, d]."""

    q: Tensor
    k: Tensor
    v: Tensor


def heads(bench: Bench) -> Heads:
    vision = bench.config.vision
    shape = (bench.tiles, vision.num_attention_heads, vision.grid**2, vision.head_dim)
    return Heads(*bench.noise(3, *shape).unbind())


def plain_attention(i: Heads, rows: int | None = None) -> Work:
    scale = i.q.shape[-1] ** -0.5

    def run() -> Tensor:
        blocks = torch.split(i.q, rows or i.q.shape[2], dim=2)
        return torch.cat([(q * scale @ i.k.mT).softmax(-1) @ i.v for q in blocks], dim=2)

    return run


def sdpa(i: Heads) -> Work:
    return lambda: F.scaled_dot_product_attention(i.q, i.k, i.v)


def sdpa_by_tile(i: Heads) -> Work:
    tiles = range(len(i.q))
    return lambda: torch.cat(
        [sdpa(Heads(i.q[t : t + 1], i.k[t : t + 1], i.v[t : t + 1]))() for t in tiles]
    )


# ---- patch embedding


@dataclass(frozen=True)
class Pixels:
    """pixels [N, 3, T, T], weight [D, 3, p, p], bias [D], positions [P, D], maps [N, D, G, G]."""

    pixels: Tensor
    weight: Tensor
    bias: Tensor
    positions: Tensor
    maps: Tensor


def pixels(bench: Bench) -> Pixels:
    vision = bench.config.vision
    if vision.stem is not None:
        raise UsageError(
            "--experiment patch-embed: this model's patch embedding is a convolutional stem; "
            "use another --model"
        )
    x = bench.noise(bench.tiles, 3, vision.image_size, vision.image_size)
    weight = bench.noise(vision.hidden_size, 3, vision.patch_size, vision.patch_size, scale=0.02)
    bias = bench.noise(vision.hidden_size, scale=0.02)
    maps = F.conv2d(x, weight, bias, stride=vision.patch_size)
    return Pixels(x, weight, bias, bench.noise(vision.grid**2, vision.hidden_size), maps)


def rows_of(maps: Tensor) -> Tensor:
    """[N, D, G, G] -> [N, P, D], a strided view."""
    return maps.flatten(2).mT


def conv2d(i: Pixels) -> Work:
    return lambda: F.conv2d(i.pixels, i.weight, i.bias, stride=i.weight.shape[-1])


def strided_add(i: Pixels) -> Work:
    return lambda: rows_of(i.maps) + i.positions


def contiguous_add(i: Pixels) -> Work:
    return lambda: rows_of(i.maps).contiguous() + i.positions


def one_product(i: Pixels) -> Work:
    n, patch = len(i.pixels), i.weight.shape[-1]
    grid = i.pixels.shape[-1] // patch
    side, weight = grid * patch, i.weight.flatten(1)

    def run() -> Tensor:
        cut = i.pixels[:, :, :side, :side].reshape(n, 3, grid, patch, grid, patch)
        return F.linear(cut.permute(0, 2, 4, 1, 3, 5).reshape(n, grid**2, -1), weight, i.bias)

    return run


def dense_add(i: Pixels) -> Work:
    dense = rows_of(i.maps).contiguous()  # what the product leaves
    return lambda: dense + i.positions


def patch_meaning(bench: Bench, rows: list[Row]) -> list[str]:
    """The stage as written, the best combination, and the ratio."""
    ms = {row["arm"]: row["ms"] for row in rows if "ms" in row}
    if ms.keys() != PATCH_ARMS.keys():
        return fastest_arm(rows)
    conv, product, strided, contiguous, dense = (ms[name] for name in PATCH_ARMS)
    written = conv + strided
    best = min(product + dense, conv + min(strided, contiguous))
    return [
        f"as the reference writes it (conv2d, strided add): {written:.2f} ms "
        f"for {bench.tiles} tiles, {written / bench.tiles:.2f} ms a tile",
        f"best combination: {best:.2f} ms, {best / bench.tiles:.2f} ms a tile, "
        f"{written / best:.2f} times as fast",
    ]


PATCH_ARMS: dict[str, Arm[Pixels]] = {
    arm.name: arm
    for arm in (
        Arm("conv2d, stride = kernel", conv2d, lambda i, maps: rows_of(maps) + i.positions),
        Arm("conv2d as one matrix product", one_product, lambda i, x: x + i.positions),
        Arm("flatten + transpose (strided), position add", strided_add, computes=False),
        Arm("the same, made contiguous first", contiguous_add, computes=False),
        Arm("position add after the product", dense_add, computes=False),
    )
}


# ---- tiles at once, number types: a tower of one layer


@dataclass(frozen=True)
class Tiles:
    """A model whose tower has one layer, and tiles uint8 [N, T, T, 3]."""

    model: SmolVLM
    tiles: Tensor

    def encode(self, tiles: Tensor) -> Tensor:
        features: Tensor = self.model.connector(self.model.vision_model(tiles))
        return features


def tiles_of(bench: Bench) -> Tiles:
    side = bench.config.vision.image_size
    shape = (bench.tiles, side, side, 3)
    generator = torch.Generator().manual_seed(0)
    tiles = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    return Tiles(small_model(bench), tiles.to(bench.device))


def at_once(i: Tiles, tiles: int) -> Work:
    return lambda: torch.cat([i.encode(chunk) for chunk in torch.split(i.tiles, tiles)])


def concurrently(i: Tiles, towers: int) -> Work:
    """As many threads of Python, each with its share of the cores, one tile at a time.

    They end with the pool, when nobody holds the work any more.
    """
    threads = torch.get_num_threads()
    if i.tiles.device.type != "cpu":
        raise Unavailable("threads of their own are for a CPU")
    if threads < towers:
        raise Unavailable(f"it needs {towers} threads")

    @torch.inference_mode()  # holds for one thread only
    def encode(tile: Tensor) -> Tensor:
        return i.encode(tile)

    share = (max(1, threads // towers),)
    pool = ThreadPoolExecutor(towers, "tower", torch.set_num_threads, share)

    def run() -> Tensor:
        try:
            return torch.cat(list(pool.map(encode, torch.split(i.tiles, 1))))
        finally:
            torch.set_num_threads(threads)  # parts of it are common to all threads

    return run


def chunk_arms(bench: Bench) -> tuple[Arm[Tiles], ...]:
    counts = [n for n in (1, 2, 4, 8, 17) if n <= bench.tiles]
    return (
        *(Arm(f"{n} at once", partial(at_once, tiles=n)) for n in counts),
        *(Arm(f"{n} towers, 1 tile each", partial(concurrently, towers=n)) for n in (2, 4, 8)),
    )


@dataclass(frozen=True)
class OneLayer:
    """A plain model in float32, and the input [N, P, D] of its tower's one layer."""

    model: SmolVLM
    x: Tensor


def one_layer(bench: Bench) -> OneLayer:
    bench = replace(bench, dtype=torch.float32)
    vision = bench.config.vision
    x = bench.noise(bench.tiles, vision.grid**2, vision.hidden_size)
    return OneLayer(small_model(bench, fast=False), x)


def in_dtype(i: OneLayer, dtype: torch.dtype) -> Work:
    model = specialise(deepcopy(i.model).to(dtype), widen=False)
    return partial(model.vision_model.encoder, i.x.to(dtype))


# ---- decoding with and without a cache

_PROMPT, _NEW, _LAYERS = 64, 8, 4


@dataclass(frozen=True)
class Words:
    """A model with a decoder of a few layers, and embedded words [1, _PROMPT + _NEW, H]."""

    model: SmolVLM
    x: Tensor


def words(bench: Bench) -> Words:
    shape = (1, _PROMPT + _NEW, bench.config.text.hidden_size)
    return Words(
        model := small_model(bench, _LAYERS), bench.noise(*shape).to(model.activation_dtype)
    )


def without_cache(i: Words) -> Work:
    """Everything anew for each word."""
    ends = range(_PROMPT + 1, _PROMPT + _NEW + 1)
    return lambda: torch.cat([i.model.next_logits(i.x[:, :end]) for end in ends])


def with_cache(i: Words) -> Work:
    model = i.model
    parts = torch.split(i.x, [_PROMPT + 1, *[1] * (_NEW - 1)], 1)

    def run() -> Tensor:
        cache = KVCache(
            model.config.text, 1, _PROMPT + _NEW, dtype=model.activation_dtype, device=model.device
        )
        return torch.cat([model.next_logits(part, cache) for part in parts])

    return run


# ---- the table

EXPERIMENTS: dict[str, Callable[[Bench], Result]] = {
    "batching": batching,
    "patch-embed": Experiment(
        "patch embedding",
        pixels,
        lambda _: tuple(PATCH_ARMS.values()),
        flops=lambda bench: tower_costs(bench.config, bench.tiles, 1)["patch embedding"].flops,
        summary=patch_meaning,
    ).run,
    "activation": Experiment(
        "fc1 and its activation",
        mlp_inputs,
        lambda _: (
            Arm("linear, then GELU", linear_then_gelu),
            Arm("linear, then GELU in float32", linear_then_gelu_in_float32),
            Arm("packed linear, then GELU", packed_then_gelu),
            Arm("packed linear with GELU fused", packed_with_gelu),
        ),
        flops=layer_flops("fc1"),
    ).run,
    "attention": Experiment(
        "attention of one layer",
        heads,
        lambda _: (
            Arm("plain: softmax(q k) v", plain_attention),
            Arm("sdpa", sdpa),
            Arm("sdpa, one tile at a time", sdpa_by_tile),
            Arm("chunked, 256 queries at a time", partial(plain_attention, rows=256)),
        ),
        flops=layer_flops("attention"),
    ).run,
    "mlp-blocks": Experiment(
        "MLP of one layer", mlp_inputs, mlp_arms, flops=layer_flops("MLP")
    ).run,
    "tile-chunks": Experiment("tower with one layer, tiles at once", tiles_of, chunk_arms).run,
    "dtype": Experiment(
        "one layer in each number type",
        one_layer,
        lambda _: tuple(
            Arm(str(dtype).removeprefix("torch."), partial(in_dtype, dtype=dtype))
            for dtype in (torch.float32, torch.bfloat16, torch.float16)
        ),
        flops=layer_flops("attention block", "MLP"),
        coarsest=torch.bfloat16,
    ).run,
    "kv-cache": Experiment(
        f"{_NEW} words after {_PROMPT}, the decoder's first {_LAYERS} layers",
        words,
        lambda _: (
            Arm("without a cache", without_cache),
            Arm("with a cache", with_cache),
        ),
    ).run,
}
