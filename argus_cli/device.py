"""Which device, number type and number of threads; and what they cost. Knows nothing of models."""

import math
import os
from collections.abc import Iterator, Set
from pathlib import Path

import torch

from argus_cli.errors import UsageError

_GROUPS, _GROUPS_OF_SELF = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def choose_device(name: str = "auto") -> torch.device:
    """ "auto" takes CUDA, then MPS, then the CPU. Raises UsageError for what isn't there."""
    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, here in there.items() if here))
    if not there.get(name.partition(":")[0]):
        here = ", ".join(kind for kind, is_here in there.items() if is_here)
        raise UsageError(f"--device {name}: not available here; there is {here}")
    return torch.device(name)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """ "auto" takes bfloat16 where the hardware multiplies it faster than float32."""
    if name == "auto":
        return torch.bfloat16 if has_fast_bfloat16(device) else torch.float32
    if name not in DTYPES:
        raise UsageError(f"--dtype {name}: not one of auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16 faster than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "mps":
        return True
    return fast_bfloat16_cpu(cpu_flags())


def fast_bfloat16_cpu(flags: Set[str]) -> bool:
    """By the CPU's flags: AMX, or AVX512-BF16 unless AMX was hidden from this machine.

    A CPU that has AVX512-FP16 is a Sapphire Rapids or later, made with AMX. Where a hypervisor
    hides that, bfloat16 products ran at half the speed of float32 (169 against 320 GFLOP/s).
    """
    return "amx_bf16" in flags or ("avx512_bf16" in flags and "avx512_fp16" not in flags)


def cpu_flags() -> Set[str]:
    """The CPU's features as Linux lists them; none elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    lines = (line.partition(":") for line in text.splitlines())
    return frozenset(next((flags for key, _, flags in lines if key.strip() == "flags"), "").split())


def available_threads() -> int:
    """CPUs that this process may use: its affinity, cut by the quotas of its control groups."""
    if hasattr(os, "sched_getaffinity"):
        cpus = len(os.sched_getaffinity(0))
    else:
        cpus = os.cpu_count() or 1
    return max(1, int(min([cpus, *map(_quota, _control_groups())])))


def _control_groups() -> Iterator[Path]:
    """The groups that bound this process's CPU time: its own (cgroup v2 or v1) and those above."""
    try:
        lines = _GROUPS_OF_SELF.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if "cpu" in controllers.split(",") or not controllers:
            root = _GROUPS / "cpu" if controllers else _GROUPS
            own = root / group.lstrip("/")  # in a container it may not be there, but its root is
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(root))


def _quota(group: Path) -> float:
    """CPUs' worth of time that a control group is granted."""
    try:
        if (both := group / "cpu.max").exists():
            quota, period = map(int, both.read_text().split())
        else:
            quota, period = (
                int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period")
            )
        return quota / period if quota > 0 else math.inf
    except (OSError, ValueError, ArithmeticError):  # "max", or no group that has quotas
        return math.inf


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what was asked of it, so that a clock tells the truth."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
