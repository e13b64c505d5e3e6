"""The options that several commands share, grouped as --help shows them. Imports nothing heavy."""

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from argus_cli.undecoded import replaced

SAY, INPUT, MODEL, TILES, GENERATION, OUTPUT, RUN = (
    "What to say", "Which pictures", "Model", "Tiles", "Generation", "Output", "Run",
)  # fmt: skip


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


class DType(StrEnum):
    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Quantize(StrEnum):
    int8 = "int8"


Kind = TypeVar("Kind", bound=StrEnum)


def format_of(output: Path | None, kinds: type[Kind]) -> Kind:
    """The format that an output's ending names, else text."""
    ending = output.suffix.lower().removeprefix(".") if output else ""
    return next((kind for kind in kinds if kind == ending), kinds("text"))


def finite(value: float | None) -> float | None:
    """Any number but nan and infinity, which no range of options refuses."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


def words(value: str | None) -> str | None:
    """Text of any option as it was meant, whatever the system's encoding."""
    return None if value is None else replaced(value)


def _stops(value: list[str] | None) -> list[str] | None:
    if value and "" in value:
        raise typer.BadParameter("an empty text would end every answer at once")
    return None if value is None else [replaced(text) for text in value]


def _tiles(value: str) -> str:
    if value not in ("full", "auto") and not (value.isdecimal() and int(value) >= 1):
        raise typer.BadParameter(f"{value!r} is not full, auto or a number of at least 1")
    return value


System = Annotated[
    str | None,
    typer.Option(
        "--system", metavar="TEXT", callback=words, rich_help_panel=SAY,
        help="A system turn before it.",
    ),
]  # fmt: skip
FailFast = Annotated[
    bool, typer.Option("--fail-fast", rich_help_panel=RUN, help="Stop at the first failure.")
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", metavar="NAME|FOLDER", rich_help_panel=MODEL,
        help="A model of `argus models list`, or a folder that holds one. "
        "Default: $ARGUS_MODEL, else the best one on disk, else the bundled glimpse.",
    ),
]  # fmt: skip
DeviceName = Annotated[Device, typer.Option("--device", rich_help_panel=MODEL)]
DTypeName = Annotated[
    DType,
    typer.Option("--dtype", rich_help_panel=MODEL, help="auto: bfloat16 where it is fast."),
]
QuantizeName = Annotated[
    Quantize | None,
    typer.Option(
        "--quantize", rich_help_panel=MODEL,
        help="Hold the decoder's weights in 8 bits: faster on a CPU, a little less exact.",
    ),
]  # fmt: skip
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", min=1, max=1024, rich_help_panel=MODEL, help="Default: all CPUs allowed."
    ),
]
Offline = Annotated[
    bool, typer.Option("--offline", rich_help_panel=MODEL, help="Never touch the network.")
]
Tiles = Annotated[
    str,
    typer.Option(
        "--tiles", metavar="full|auto|N", callback=_tiles, rich_help_panel=TILES,
        help="full: as the model was trained, always scaled up. auto: no larger than the picture. "
        "N: at most N tiles.",
    ),
]  # fmt: skip
MaxPixels = Annotated[
    int,
    typer.Option(
        "--max-pixels", min=0, metavar="N", rich_help_panel=TILES,
        help="Refuse pictures with more pixels; 0 lifts the limit.",
    ),
]  # fmt: skip
MaxNewTokens = Annotated[
    int, typer.Option("--max-new-tokens", min=1, metavar="N", rich_help_panel=GENERATION)
]
Temperature = Annotated[
    float,
    typer.Option(
        "--temperature", min=0, callback=finite, rich_help_panel=GENERATION,
        help="0: always the most likely word. Higher: drawn at random.",
    ),
]  # fmt: skip
TopP = Annotated[
    float,
    typer.Option(
        "--top-p", min=0, max=1, callback=finite, rich_help_panel=GENERATION,
        help="Draw from the most likely words that make up this share.",
    ),
]  # fmt: skip
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed", min=-(2**63), max=2**64 - 1, rich_help_panel=GENERATION,
        help="Makes a random answer repeatable.",
    ),
]  # fmt: skip
Stop = Annotated[
    list[str] | None,
    typer.Option(
        "--stop", metavar="TEXT", callback=_stops, rich_help_panel=GENERATION,
        help="End before this text; may be repeated.",
    ),
]  # fmt: skip
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout", min=0, max=1e6, metavar="SECONDS", callback=finite, rich_help_panel=RUN,
        help="Give up on an input that takes longer to read; 0: never, nor is there then anything "
        "to hold one that crashes its decoder or eats memory. "
        "Default: 60, but never for a single picture.",
    ),
]  # fmt: skip
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="ADDRESS|local", rich_help_panel=RUN,
        help="Run on a Ray cluster, or on one of this machine alone. Inputs may then be URIs, as "
        "s3://BUCKET/PREFIX, or Parquet files with a column bytes or path; --output is a folder or "
        "URI for parts in jsonl or parquet.",
    ),
]  # fmt: skip
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", rich_help_panel=RUN, help="Only errors on stderr.")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", rich_help_panel=RUN, help="Phases and counts on stderr.")
]
