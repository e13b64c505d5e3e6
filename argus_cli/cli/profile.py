"""`argus profile`: measure a model's stages, or run one experiment; print, save, compare, plot."""

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from argus_cli.cli import options as opt
from argus_cli.cli.stderr import say
from argus_cli.errors import ExitCode, UsageError
from argus_cli.output.records import printable

if TYPE_CHECKING:
    import torch

    from argus_cli.profiling.report import Document
    from argus_cli.profiling.subject import Subject

COMPARE = "Compare"


class Format(StrEnum):
    table = "table"
    json = "json"


class ExperimentName(StrEnum):
    batching = "batching"
    patch_embed = "patch-embed"
    activation = "activation"
    attention = "attention"
    mlp_blocks = "mlp-blocks"
    tile_chunks = "tile-chunks"
    dtype = "dtype"
    kv_cache = "kv-cache"


def profile(
    image: Annotated[
        Path | None,
        typer.Argument(metavar="[IMAGE]", help="A picture; without it one is drawn."),
    ] = None,
    tiles: Annotated[
        int | None,
        typer.Option(
            "--tiles",
            min=1,
            metavar="N",
            rich_help_panel=opt.TILES,
            help="How many; of an IMAGE at most. Default: 1, all of an IMAGE, 8 for experiments.",
        ),
    ] = None,
    experiment: Annotated[
        ExperimentName | None,
        typer.Option(
            "--experiment", rich_help_panel=opt.RUN, help="Compare ways to compute one part."
        ),
    ] = None,
    layers: Annotated[
        bool, typer.Option("--layers", rich_help_panel=opt.RUN, help="A row for each layer too.")
    ] = False,
    runs: Annotated[
        int | None,
        typer.Option(
            "--runs",
            min=1,
            metavar="N",
            rich_help_panel=opt.RUN,
            help="Default: 2 to 7, as many as fit into half a minute; 7 for experiments.",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", metavar="NAME|FOLDER", rich_help_panel=opt.MODEL,
            help="A model of `argus models list`, on this machine or not, or a folder.",
        ),
    ] = "smolvlm-256m",
    random_weights: Annotated[
        bool,
        typer.Option(
            "--random-weights", rich_help_panel=opt.MODEL, help="Even where there are real ones."
        ),
    ] = False,
    device: opt.DeviceName = opt.Device.auto,
    dtype: opt.DTypeName = opt.DType.auto,
    threads: opt.Threads = None,
    format: Annotated[
        Format, typer.Option("--format", "-f", rich_help_panel=opt.OUTPUT)
    ] = Format.table,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE", rich_help_panel=opt.OUTPUT,
            help="Bars and a roofline as .png or .svg.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save", metavar="FILE", rich_help_panel=COMPARE, help="Keep it for --compare."
        ),
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(
            "--compare", metavar="FILE", rich_help_panel=COMPARE,
            help="Show the ratio to a saved profile, stage by stage.",
        ),
    ] = None,
    fail_over: Annotated[
        float | None,
        typer.Option(
            "--fail-over", min=0, metavar="PERCENT", callback=opt.finite, rich_help_panel=COMPARE,
            help="Exit 1 when a stage is slower than the saved one by more.",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Measure a model stage by stage against this machine's own ceilings.

    argus profile --tiles 8

    argus profile -m glimpse photo.jpg --save before.json

    argus profile --experiment batching
    """
    if experiment and (image or layers or plot or save or compare):
        raise UsageError(
            "--experiment goes with none of IMAGE, --layers, --plot, --save, --compare"
        )
    if fail_over is not None and compare is None:
        raise UsageError("--fail-over needs --compare FILE")

    import torch

    from argus_cli.device import available_threads, choose_device, choose_dtype
    from argus_cli.media.sources import spare_media
    from argus_cli.output.files import check_writable, write_whole
    from argus_cli.profiling.compare import compare as compared
    from argus_cli.profiling.compare import comparison_table, read_profile
    from argus_cli.profiling.plot import check_plot
    from argus_cli.profiling.plot import plot as draw
    from argus_cli.profiling.report import experiment_table, table
    from argus_cli.profiling.subject import open_subject

    before = read_profile(compare) if compare else None
    spare_media(save, [image], "--save")
    if plot:
        check_plot(plot)
    if save:
        check_writable(save, "--save")
    if image and not image.is_file():
        raise UsageError(f"{image}: no such file")
    if threads or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads or available_threads())
    place = choose_device(device)
    number_type = choose_dtype(dtype, place)
    subject = open_subject(model)
    if experiment:
        doc = _experiment(experiment, subject, tiles or 8, runs or 7, number_type, place)
        _print(format, doc, experiment_table(doc))
        return
    random = random_weights or subject.folder is None
    doc = _profile(subject, image, tiles, runs, number_type, place, random=random)
    if save:
        write_whole(save, json.dumps(doc, indent=2) + "\n", "--save")
    if plot:
        draw(doc, plot)
    if before is None:
        _print(format, doc, table(doc, layers=layers))
        return
    found = compared(before, doc, fail_over)
    lines = [*comparison_table(found), "", *table(doc, layers=layers)]
    _print(format, doc | {"compared": found}, lines)
    if found["slower"]:
        say(f"slower by more than {fail_over:g} %: {', '.join(found['slower'])}")
        raise typer.Exit(ExitCode.SOME_FAILED)


def _profile(
    subject: "Subject", image: Path | None, tiles: int | None, runs: int | None,
    dtype: "torch.dtype", device: "torch.device", *, random: bool,
) -> "Document":  # fmt: skip
    from argus_cli.profiling.ceilings import measure_ceilings
    from argus_cli.profiling.picture import choose_picture
    from argus_cli.profiling.pipeline import profile
    from argus_cli.profiling.report import circumstances, document
    from argus_cli.profiling.timing import device_clock

    picture = choose_picture(image, tiles, subject.preprocess)  # a bad one costs no model
    model, clock = subject.model(dtype, device, random=random), device_clock(device)
    ceilings = measure_ceilings(device, model.activation_dtype, clock)
    done = profile(subject, model, picture, ceilings, clock, runs=runs)
    return document(done, circumstances(subject, dtype, device), random=random)


def _experiment(
    name: str, subject: "Subject", tiles: int, runs: int,
    dtype: "torch.dtype", device: "torch.device",
) -> "Document":  # fmt: skip
    import torch

    from argus_cli.profiling.arms import EXPERIMENTS
    from argus_cli.profiling.experiment import Bench
    from argus_cli.profiling.report import circumstances, experiment_document
    from argus_cli.profiling.timing import device_clock

    with torch.inference_mode():
        bench = Bench(subject.config, tiles, dtype, device, runs, device_clock(device))
        result = EXPERIMENTS[name](bench)
    return experiment_document(result, circumstances(subject, dtype, device), name, tiles)


def _print(format: Format, doc: "Document", lines: list[str]) -> None:
    """The document as JSON, or its lines, the one of the slowest stage in bold on a terminal."""
    if format is Format.json:
        typer.echo(json.dumps(doc, indent=2))
        return
    colour = False if os.environ.get("NO_COLOR") else None
    slowest = f"{doc['slowest']} " if "slowest" in doc else None
    for line in lines:
        bold = line is lines[-1] or slowest is not None and line.startswith(slowest)
        shown = printable(line)  # a folder's or a saved profile's names are in it
        typer.echo(typer.style(shown, bold=True) if bold else shown, color=colour)
