"""Pixel shuffle and one linear: patch features to decoder inputs. Knows nothing of either side.

N tiles, P = G * G patches, D vision size, s scale factor, S = P / s^2 tokens, H text size.
"""

from torch import Tensor, nn

from argus_cli.smolvlm.config import ModelConfig


def pixel_shuffle(x: Tensor, scale: int) -> Tensor:
    """[N, P, D] -> [N, P / s^2, s*s*D]: each token is an s x s block of patches, row by row.

    Bit-equal to transformers' Idefics3Connector.pixel_shuffle for s = 2, 3, 4.
    """
    n, patches, width = x.shape
    side = int(patches**0.5) // scale
    x = x.view(n, side, scale, side, scale, width).transpose(2, 3)  # [N, G/s, G/s, s, s, D]
    return x.reshape(n, side * side, scale * scale * width)


class Connector(nn.Module):
    """[N, P, D] -> [N, S, H]."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.scale = config.scale_factor
        width = config.vision.hidden_size * self.scale**2
        # A dictionary for the checkpoint's name, modality_projection.proj.
        self.modality_projection = nn.ModuleDict(
            {"proj": nn.Linear(width, config.text.hidden_size, bias=False)}
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.modality_projection["proj"](pixel_shuffle(x, self.scale))  # type: ignore[no-any-return]
