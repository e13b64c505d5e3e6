"""What this machine can do at best: the fastest matrix product, and the memory's bandwidth."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from argus_cli.profiling.flops import Cost
from argus_cli.profiling.timing import Clock, repeat
from argus_cli.smolvlm.kernels import PackedLinear, has_onednn

_PRODUCTS = ((1024, 1024, 1024), (2048, 2048, 2048), (1024, 768, 3072), (4096, 768, 3072))
_COPIED_BYTES = 256 * 2**20  # beyond any cache
_BUDGET_S = 0.35  # for each measurement; five of them


@dataclass(frozen=True)
class Ceilings:
    """Operations and bytes per second."""

    flops: float
    bandwidth: float

    def ideal_s(self, cost: Cost) -> float:
        """Seconds that ``cost`` takes at these rates: the longer of computing and moving."""
        return max(cost.flops / self.flops, cost.bytes / self.bandwidth)

    def computes(self, cost: Cost) -> bool:
        """Whether computing, not moving, is what bounds it."""
        return cost.flops / self.flops >= cost.bytes / self.bandwidth


def _products(weight: Tensor) -> Iterator[Callable[[Tensor], Tensor]]:
    """The plain product, and the packed one where there is one: a model runs either."""
    yield lambda x: F.linear(x, weight)
    if weight.device.type == "cpu" and has_onednn(weight.dtype):
        yield PackedLinear(weight, None)


def measure_ceilings(device: torch.device, dtype: torch.dtype, clock: Clock) -> Ceilings:
    """The best of several products in ``dtype`` and of copying and summing; about two seconds."""
    rates = []
    for rows, inputs, outputs in _PRODUCTS:
        x = torch.ones(rows, inputs, dtype=dtype, device=device)
        w = torch.ones(outputs, inputs, dtype=dtype, device=device)
        for product in _products(w):
            sample = repeat(lambda x=x, do=product: do(x), 20, clock, _BUDGET_S / 2)[1]  # type: ignore[misc]
            rates.append(2 * rows * inputs * outputs / sample.fastest)
    block = torch.ones(_COPIED_BYTES // 4, device=device)
    copy = torch.empty_like(block)
    copied = repeat(lambda: copy.copy_(block), 5, clock, _BUDGET_S)[1].fastest
    read = repeat(lambda: block.sum(), 5, clock, _BUDGET_S)[1].fastest
    return Ceilings(max(rates), max(2 * _COPIED_BYTES / copied, _COPIED_BYTES / read))
