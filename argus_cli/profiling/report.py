"""A profile as one JSON document, and the document as an aligned table."""

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from argus_cli.profiling.ceilings import Ceilings
from argus_cli.profiling.experiment import Result
from argus_cli.profiling.pipeline import Profile, Stage, Whole
from argus_cli.profiling.subject import Subject

SCHEMA = 1
Document = dict[str, Any]
_TOLERATED = 0.05  # between the stages' sum and the whole
_TOO_SHORT = 1e-3  # a stage below this share of the whole says nothing about rates


def circumstances(subject: Subject, dtype: torch.dtype, device: torch.device) -> Document:
    """What was run, and where: the head of every document."""
    return {
        "schema": SCHEMA,
        "model": subject.name,
        "dtype": str(dtype).removeprefix("torch."),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "machine": {
            "processor": _processor(device), "architecture": platform.machine(),
            "system": platform.system(),
        },
        "versions": {
            "argus": version("argus-vlm"), "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }  # fmt: skip


def document(profile: Profile, head: Document, *, random: bool) -> Document:
    """Everything that was measured; times in ms, rates in GFLOP/s and GB/s."""
    whole_ms = 1e3 * sum(stage.sample.median for stage in profile.stages)
    slowest = max(profile.stages, key=lambda stage: stage.sample.median)

    def rows(stages: Iterable[Stage]) -> list[Document]:
        return [_row(s, profile.grid.tiles, profile.ceilings, whole_ms) for s in stages]

    return head | {
        "weights": "random" if random else "real",
        "tiles": profile.grid.tiles,
        "distinct_tiles": profile.distinct_tiles,
        "grid": [profile.grid.rows, profile.grid.cols],
        "prompt_tokens": profile.prompt_tokens,
        "runs": profile.runs,
        "ceilings": {
            "gflop_per_s": profile.ceilings.flops / 1e9,
            "gb_per_s": profile.ceilings.bandwidth / 1e9,
        },
        "stages": rows(profile.stages),
        "layers": rows(profile.layers),
        "wholes": {name: _whole(whole) for name, whole in profile.wholes.items()},
        "slowest": slowest.name,
    }


def _row(stage: Stage, tiles: int, ceilings: Ceilings, whole_ms: float) -> Document:
    seconds, cost = stage.sample.median, stage.cost
    ms = 1e3 * seconds
    row: Document = {
        "part": stage.part,
        "stage": stage.name,
        **({} if stage.layer is None else {"layer": stage.layer}),
        "ms": ms,
        "ms_per_tile": ms / tiles,
        "fastest_ms": 1e3 * stage.sample.fastest,
        "spread_ms": 1e3 * stage.sample.spread,
        "share": ms / whole_ms,
        "gflop": cost.flops / 1e9,
        "gb": cost.bytes / 1e9,
    }
    if cost.bytes and ms > _TOO_SHORT * whole_ms / (1 if stage.layer is None else 32):
        rate = "gflop_per_s" if ceilings.computes(cost) else "gb_per_s"
        row[rate] = row["gflop" if ceilings.computes(cost) else "gb"] / seconds
        row["of_ceiling"] = ceilings.ideal_s(cost) / seconds
    return row


def _whole(whole: Whole) -> Document:
    return {
        "ms": 1e3 * whole.plain.median,
        "fastest_ms": 1e3 * whole.plain.fastest,
        "spread_ms": 1e3 * whole.plain.spread,
        "traced_ms": 1e3 * whole.traced.median,
        "stages_ms": 1e3 * whole.named.median,
        "not_accounted_for": whole.unnamed,
        "stages_over_whole": whole.excess,
    }


def table(doc: Document, *, layers: bool = False) -> list[str]:
    """The document as lines of text; the last one names the slowest stage."""
    ceilings, distinct = doc["ceilings"], doc["distinct_tiles"]
    lines = [
        *headline(doc),
        f"{doc['weights']} weights, {counted(doc['tiles'], 'tile')}"
        f"{', ' + str(distinct) + ' of them distinct' if distinct < doc['tiles'] else ''}, "
        f"{doc['prompt_tokens']} prompt tokens, median of {counted(doc['runs'], 'run')}",
        f"ceilings measured here: {ceilings['gflop_per_s']:.0f} GFLOP/s, "
        f"{ceilings['gb_per_s']:.1f} GB/s",
        "",
        *aligned([_HEADER, *map(_cells, doc["stages"])]),
    ]
    if layers:
        lines += ["", *aligned([_HEADER, *map(_cells, doc["layers"])])]
    lines.append("")
    for name, whole in doc["wholes"].items():
        lines.append(
            f"{name}: stages {whole['stages_ms']:.1f} ms of {whole['traced_ms']:.1f} traced, "
            f"not accounted for {whole['not_accounted_for']:.1%}; without hooks "
            f"{whole['ms']:.1f} ms (spread {whole['spread_ms']:.1f}), "
            f"fastest runs differ by {whole['stages_over_whole']:+.1%}"
        )
        if max(whole["not_accounted_for"], abs(whole["stages_over_whole"])) > _TOLERATED:
            lines.append(f"{name}: more than {_TOLERATED:.0%}; measure again with more --runs")
    slowest = next(row for row in doc["stages"] if row["stage"] == doc["slowest"])
    return [
        *lines,
        f"slowest: {slowest['stage']}, {slowest['ms']:.1f} ms, {slowest['share']:.0%} of all",
    ]


def headline(doc: Document) -> list[str]:
    """Who ran what where, in one line."""
    return [
        f"{doc['model']}, {doc['dtype']} on {doc['device']}, {counted(doc['threads'], 'thread')}; "
        f"{doc['machine']['processor']}; torch {doc['versions']['torch']}"
    ]


def experiment_document(result: Result, head: Document, name: str, tiles: int) -> Document:
    """An experiment's rows; times in ms, rates in GFLOP/s."""
    return head | {
        "experiment": name, "title": result.title, "tiles": tiles, "rows": result.rows,
        "summary": result.summary,
    }  # fmt: skip


_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "arm": ("arm", str), "linear": ("linear", str), "tiles": ("tiles", str), "rows": ("rows", str),
    "ms": ("ms", "{:.2f}".format), "median_ms": ("median", "{:.2f}".format),
    "gflop_per_s": ("GFLOP/s", "{:.0f}".format), "relative": ("to one tile", "{:.2f}".format),
    "max_difference": ("max difference", "{:.1e}".format),
}  # fmt: skip


def experiment_table(doc: Document) -> list[str]:
    """The experiment as lines of text, what it means last."""
    rows = [row for row in doc["rows"] if "unavailable" not in row]
    keys = [key for key in _COLUMNS if any(key in row for row in rows)]
    cells = [[_COLUMNS[key][1](row[key]) if key in row else "-" for key in keys] for row in rows]
    absent = [row for row in doc["rows"] if "unavailable" in row]
    return [
        *headline(doc),
        f"{doc['title']}; up to {counted(doc['tiles'], 'tile')}, best of the runs after a warm-up",
        "",
        *aligned([[_COLUMNS[key][0] for key in keys], *cells]),
        *(f"{row['arm']}: not available: {row['unavailable']}" for row in absent),
        "",
        *doc["summary"],
    ]


def counted(number: int, thing: str) -> str:
    """ "1 tile", "2 tiles"."""
    return f"{number} {thing}" + ("" if number == 1 else "s")


_HEADER = (
    "stage", "ms", "ms/tile", "fastest", "spread", "share", "GFLOP", "rate", "of ceiling",
)  # fmt: skip


def _cells(row: Mapping[str, Any]) -> list[str]:
    name = f"{row['layer']:>2} {row['stage']}" if "layer" in row else row["stage"]
    rate = "-"
    if "gflop_per_s" in row:
        rate = f"{row['gflop_per_s']:.0f} GFLOP/s"
    elif "gb_per_s" in row:
        rate = f"{row['gb_per_s']:.1f} GB/s   "  # under the other unit
    return [
        name,
        *(f"{row[key]:.2f}" for key in ("ms", "ms_per_tile", "fastest_ms", "spread_ms")),
        f"{row['share']:.1%}",
        f"{row['gflop']:.1f}" if row["gflop"] else "-",
        rate,
        f"{row['of_ceiling']:.0%}" if "of_ceiling" in row else "-",
    ]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width: the first to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _processor(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
