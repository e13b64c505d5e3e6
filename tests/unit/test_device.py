"""Choices that must not depend on luck: number type by CPU flags, threads by what is allowed."""

import os
from pathlib import Path

import pytest
import torch

from argus_cli import device
from argus_cli.errors import UsageError


@pytest.mark.parametrize(
    ("flags", "fast"),
    [
        ({"avx2"}, False),
        ({"avx512f", "avx512_bf16"}, True),  # Cooper Lake, Zen 4
        ({"avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16"}, True),  # Sapphire Rapids
        ({"avx512f", "avx512_bf16", "avx512_fp16"}, False),  # the same with AMX hidden
    ],
)
def test_bfloat16_by_flags(flags: set[str], fast: bool) -> None:
    assert device.fast_bfloat16_cpu(flags) is fast


def test_flags_of_this_machine() -> None:
    if Path("/proc/cpuinfo").exists() and os.uname().machine == "x86_64":
        assert "sse2" in device.cpu_flags()


def test_auto_dtype_is_what_the_cpu_is_fast_at(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, dtype in (({"amx_bf16"}, torch.bfloat16), (set(), torch.float32)):
        monkeypatch.setattr(device, "cpu_flags", lambda flags=flags: flags)
        assert device.choose_dtype("auto", torch.device("cpu")) is dtype
    assert device.choose_dtype("float16", torch.device("cpu")) is torch.float16


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--dtype int4: not one of auto, float32"):
        device.choose_dtype("int4", torch.device("cpu"))
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match=r"--device cuda: not available here; there is .*cpu"):
            device.choose_device("cuda")


@pytest.mark.parametrize(
    ("groups", "files", "threads"),
    [
        ("0::/", {"cpu.max": "max 100000"}, 4),
        ("0::/", {"cpu.max": "200000 100000"}, 2),
        ("0::/", {"cpu.max": "250000 100000"}, 2),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/", {"cpu.max": "800000 100000"}, 4),
        ("0::/", {"cpu.max": "rubbish"}, 4),
        ("0::/a/b", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
        ("0::/a/b", {"a/cpu.max": "100000 100000", "a/b/cpu.max": "300000 100000"}, 1),
        ("0::/../..", {}, 4),
        (
            "3:memory:/x\n2:cpu,cpuacct:/a",
            {"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000"},
            3,
        ),
        (
            "2:cpuacct,cpu:/seen/outside/only",
            {"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"},
            1,
        ),
        ("2:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ("2:cpu:/", {"cpu/cpu.cfs_quota_us": "1000", "cpu/cpu.cfs_period_us": "0"}, 4),
        (None, {}, 4),
    ],
)
def test_threads_respect_affinity_and_quotas(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    groups: str | None,
    files: dict[str, str],
    threads: int,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(device, "_GROUPS", tmp_path)
    monkeypatch.setattr(device, "_GROUPS_OF_SELF", tmp_path / "self")
    if groups is not None:
        (tmp_path / "self").write_text(groups + "\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert device.available_threads() == threads
