"""What each stage has to compute and to move at least, by the shapes alone.

A multiply-add counts as two operations; only matrix products and convolutions are counted. Bytes
are what must be read and written once: inputs, weights, outputs. A stage's ideal time on a machine
is the longer of the two (the roofline model, Williams et al. 2009).
"""

from dataclasses import dataclass

from argus_cli.smolvlm.config import ModelConfig, StemConfig, TextConfig


@dataclass(frozen=True)
class Cost:
    """Operations and bytes."""

    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, factor: float) -> "Cost":
        return Cost(self.flops * factor, self.bytes * factor)


def linear(rows: int, inputs: int, outputs: int, size: int) -> Cost:
    """[rows, inputs] times [inputs, outputs], in numbers of ``size`` bytes."""
    numbers = rows * inputs + inputs * outputs + rows * outputs
    return Cost(2.0 * rows * inputs * outputs, float(size * numbers))


def tower_costs(config: ModelConfig, tiles: int, size: int) -> dict[str, Cost]:
    """Stages of tower and connector for ``tiles`` tiles, all layers together."""
    vision = config.vision
    width, hidden, layers = vision.hidden_size, vision.intermediate_size, vision.num_hidden_layers
    patches = vision.grid**2
    rows, pixels = tiles * patches, tiles * 3 * vision.image_size**2
    moved = float(size * rows * width)  # the activations of one layer's input, once
    scale, text = config.scale_factor**2, config.text.hidden_size
    per_layer = {
        "LN1": Cost(0, 2 * moved),
        "qkv": linear(rows, width, 3 * width, size),
        "attention": Cost(4.0 * rows * patches * width, 4 * moved),
        "out": linear(rows, width, width, size),
        "LN2": Cost(0, 2 * moved),
        "fc1": linear(rows, width, hidden, size),
        "activation": Cost(0, 2.0 * size * rows * hidden),
        "fc2": linear(rows, hidden, width, size),
        "residual": Cost(0, 6 * moved),  # two sums of two
    }
    per_layer["attention block"] = per_layer["qkv"] + per_layer["attention"] + per_layer["out"]
    per_layer["MLP"] = per_layer["fc1"] + per_layer["fc2"]
    return {
        "normalise": Cost(0, float(pixels * (1 + size))),
        "patch embedding": (
            linear(rows, 3 * vision.patch_size**2, width, size)
            if vision.stem is None
            else _stem(vision.stem, vision.image_size, width, size) * tiles
        ),
        **{stage: cost * layers for stage, cost in per_layer.items()},
        "post-LN": Cost(0, 2 * moved),
        "pixel shuffle": Cost(0, 2 * moved),
        "projection": linear(rows // scale, width * scale, text, size),
    }


def _stem(stem: StemConfig, side: int, width: int, size: int) -> Cost:
    """One tile through glimpse's convolutional stem; SAME padding halves even sides exactly."""

    def conv(inputs: int, outputs: int, kernel: int, groups: int = 1, stride: int = 1) -> Cost:
        weights = kernel**2 * inputs // groups * outputs
        area = side**2
        moved = inputs * area * stride**2 + weights + outputs * area
        return Cost(2.0 * weights * area, float(size * moved))

    side //= 2
    total = conv(3, stem.first_channels, 3, stride=2)
    inputs = stem.first_channels
    for block in stem.blocks:
        for repeat in range(block.repeats):
            stride = 1 if repeat else block.stride
            wide = inputs * block.expand_ratio
            if wide != inputs:
                total += conv(inputs, wide, 1)
            side //= stride
            total += conv(wide, wide, block.kernel_size, wide, stride)
            total += conv(wide, block.out_channels, 1)
            inputs = block.out_channels
    total += conv(inputs, stem.last_channels, 1)
    return total + linear(side**2, stem.last_channels, width, size)


def decoder_costs(config: TextConfig, new: int, seen: int, size: int) -> dict[str, Cost]:
    """Attention, MLP and head for ``new`` positions after ``seen``; logits of the last one only.

    Attention is causal: a position attends to itself and to those before it.
    """
    width, hidden = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    shared = config.num_key_value_heads * config.head_dim
    pairs = new * seen + new * (new + 1) / 2
    mixing = Cost(
        4.0 * pairs * queries, float(size * (2 * new * queries + 2 * (seen + new) * shared))
    )
    attention = (
        linear(new, width, queries + 2 * shared, size) + mixing + linear(new, queries, width, size)
    )
    mlp = linear(new, width, 2 * hidden, size) + linear(new, hidden, width, size)
    layers = config.num_hidden_layers
    return {
        "attention": attention * layers,
        "MLP": mlp * layers,
        "head": linear(1, width, config.vocab_size, size),
    }
