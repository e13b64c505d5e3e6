"""glimpse's patch embedding: EfficientNet-Lite without its classifier, one feature a patch.

Source of the architecture: Tan & Le 2019 (EfficientNet) in its Lite variant: no squeeze and
excitation, ReLU6. Batch norms are folded into the convolutions, so that there is only weight and
bias. Takes normalised pixels like any patch embedding; knows nothing of files.

N tiles, T pixels per side, G = T / 32 patches per side, P = G * G, D hidden size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from argus_cli.smolvlm.config import StemBlock, StemConfig


class SameConv(nn.Conv2d):
    """A convolution, then ReLU6 if asked; with TensorFlow's SAME padding for even sizes, of which
    the odd pixel goes last."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, *,
        relu6: bool = True,
    ):  # fmt: skip
        super().__init__(inputs, outputs, kernel, stride, groups=groups)
        before, after = (kernel - stride) // 2, (kernel - stride + 1) // 2
        self.same, self.relu6 = (before, after, before, after), relu6

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(F.pad(x, self.same) if any(self.same) else x)
        return F.relu6(x) if self.relu6 else x


class InvertedResidual(nn.Module):
    """Expand 1x1, depthwise, project 1x1; added to the input where the shape stays."""

    def __init__(self, inputs: int, block: StemBlock, stride: int):
        super().__init__()
        width = inputs * block.expand_ratio
        self.expand = SameConv(inputs, width, 1) if block.expand_ratio != 1 else None
        self.depthwise = SameConv(width, width, block.kernel_size, stride, groups=width)
        self.project = SameConv(width, block.out_channels, 1, relu6=False)
        self.residual = stride == 1 and inputs == block.out_channels

    def forward(self, x: Tensor) -> Tensor:
        wide = x if self.expand is None else self.expand(x)
        h: Tensor = self.project(self.depthwise(wide))
        return x + h if self.residual else h


class ConvStem(nn.Module):
    """Normalised pixels [N, 3, T, T] -> patch embeddings [N, P, D]."""

    def __init__(self, config: StemConfig, hidden_size: int):
        super().__init__()
        self.first = SameConv(3, config.first_channels, 3, stride=2)
        self.blocks = nn.ModuleList()
        width = config.first_channels
        for block in config.blocks:
            for repeat in range(block.repeats):
                self.blocks.append(InvertedResidual(width, block, 1 if repeat else block.stride))
                width = block.out_channels
        self.last = SameConv(width, config.last_channels, 1)
        self.projection = nn.Linear(config.last_channels, hidden_size)

    def forward(self, pixels: Tensor) -> Tensor:
        """[N, 3, T, T] -> [N, P, D]."""
        return self.embed(self.trunk(pixels))

    def trunk(self, pixels: Tensor) -> Tensor:
        """[N, 3, T, T] -> [N, C, G, G]: all that training keeps frozen, and computes once."""
        x: Tensor = self.first(pixels.contiguous(memory_format=torch.channels_last))
        for block in self.blocks:
            x = block(x)
        return x

    def embed(self, maps: Tensor) -> Tensor:
        """[N, C, G, G] -> [N, P, D], row by row."""
        x = self.last(maps).flatten(2).transpose(1, 2)  # [N, P, last]
        return self.projection(x)  # type: ignore[no-any-return]
