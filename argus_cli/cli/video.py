"""`argus video`: parse, follow each film segment by segment, write."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from argus_cli.cli import options as opt
from argus_cli.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from argus_cli.media.sources import Source

FRAMES = "Frames and segments"


class FilmFormat(StrEnum):
    text = "text"
    json = "json"
    jsonl = "jsonl"
    srt = "srt"
    vtt = "vtt"
    tsv = "tsv"
    html = "html"
    parquet = "parquet"  # with --ray


def video(
    context: typer.Context,
    clips: Annotated[
        list[str], typer.Argument(metavar="CLIP...", help="Films; - reads one from stdin.")
    ],
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt", "-p", metavar="TEXT", callback=opt.words, rich_help_panel=opt.SAY,
            help="What to ask about each segment.",
        ),
    ] = None,
    system: opt.System = None,
    summary: Annotated[
        bool,
        typer.Option("--summary/--no-summary", rich_help_panel=opt.SAY, help="Of the whole film."),
    ] = True,
    fps: Annotated[
        float,
        typer.Option(
            "--fps", min=0.001, callback=opt.finite, rich_help_panel=FRAMES,
            help="Frames a second.",
        ),
    ] = 1.0,
    max_frames: Annotated[
        int,
        typer.Option(
            "--max-frames", min=1, max=999, rich_help_panel=FRAMES,
            help="At most so many, spread over the whole film.",
        ),
    ] = 64,
    window: Annotated[
        float,
        typer.Option(
            "--window", min=0.1, metavar="SECONDS", callback=opt.finite, rich_help_panel=FRAMES,
            help="Length of a segment.",
        ),
    ] = 10.0,
    scenes: Annotated[
        bool,
        typer.Option("--scenes", rich_help_panel=FRAMES, help="Segments end at cuts instead."),
    ] = False,
    start: Annotated[
        float,
        typer.Option(
            "--start", min=0, metavar="SECONDS", callback=opt.finite, rich_help_panel=FRAMES
        ),
    ] = 0.0,
    end: Annotated[
        float | None,
        typer.Option(
            "--end", min=0, metavar="SECONDS", callback=opt.finite, rich_help_panel=FRAMES
        ),
    ] = None,
    model: opt.ModelName = None,
    device: opt.DeviceName = opt.Device.auto,
    dtype: opt.DTypeName = opt.DType.auto,
    quantize: opt.QuantizeName = None,
    threads: opt.Threads = None,
    offline: opt.Offline = False,
    max_new_tokens: opt.MaxNewTokens = 128,
    temperature: opt.Temperature = 0.0,
    top_p: opt.TopP = 1.0,
    seed: opt.Seed = None,
    stop: opt.Stop = None,
    format: Annotated[
        FilmFormat | None,
        typer.Option(
            "--format", "-f", rich_help_panel=opt.OUTPUT,
            help="Default: by the ending of --output, else text.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE|FOLDER", rich_help_panel=opt.OUTPUT,
            help="Write there instead of stdout. srt, vtt, tsv and html of several films "
            "need a folder.",
        ),
    ] = None,
    frames_dir: Annotated[
        Path | None,
        typer.Option(
            "--frames-dir", metavar="FOLDER", rich_help_panel=opt.OUTPUT,
            help="Save the frames that the model saw.",
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", rich_help_panel=opt.OUTPUT, help="Replace an output that is there."
        ),
    ] = False,
    timeout: opt.Timeout = None,
    ray: opt.Ray = None,
    fail_fast: opt.FailFast = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:  # fmt: skip
    """Tell what happens in films, with times.

    argus video clip.mp4

    argus video holiday.mov --scenes -f html -o holiday.html
    """
    from argus_cli.media.sources import FILMS, resolve, spare_media

    sources = resolve(clips, kind=FILMS) if ray is None else []
    if end is not None and end <= start:
        raise UsageError(f"--end {end:g} doesn't come after --start {start:g}")
    kind = format or opt.format_of(output, FilmFormat)
    spare_media(output, [source.file for source in sources])
    if ray is None:
        if kind is FilmFormat.parquet:
            raise UsageError("--format parquet: needs --ray")
        _check_output(sources, kind, output, frames_dir, overwrite)

    from argus_cli.batch import TIMEOUT_S
    from argus_cli.captioner import FilmRequest
    from argus_cli.cli.load import open_captioner, warn_unguarded, warn_unread
    from argus_cli.cli.screening import Screening
    from argus_cli.schema import Sampling

    request = FilmRequest(
        prompt=prompt, system=system, summary=summary, fps=fps, max_frames=max_frames,
        window=window, scenes=scenes, start=start, end=end,
        timeout=TIMEOUT_S if timeout is None else timeout,
        sampling=Sampling(max_new_tokens, temperature, top_p, seed, tuple(stop or ())),
    )  # fmt: skip
    if ray is not None:
        from argus_cli.cli.cluster import run_many

        return run_many(
            context, ray, clips, request, output, format, model=model, device=device, dtype=dtype,
            quantize=quantize, threads=threads, offline=offline, quiet=quiet,
        )  # fmt: skip
    captioner = open_captioner(
        model, device, dtype, quantize, threads, offline=offline, quiet=quiet, verbose=verbose
    )
    if not quiet:
        warn_unread(captioner, prompt, system)
        warn_unguarded(timeout)
    screening = Screening(
        captioner, request, format=kind, output=output, frames_dir=frames_dir, overwrite=overwrite,
        quiet=quiet, verbose=verbose,
    )  # fmt: skip
    if screening.show(sources, fail_fast=fail_fast):
        raise typer.Exit(ExitCode.SOME_FAILED)


def _check_output(
    sources: "list[Source]",
    format: FilmFormat,
    output: Path | None,
    frames_dir: Path | None,
    overwrite: bool,
) -> None:
    """Refuse what couldn't be written, or would mix films, before any model is loaded."""
    from argus_cli.output.files import check_folder, check_ours, check_writable
    from argus_cli.output.films import MARKS

    several = len(sources) > 1
    pages = format not in ("text", "json", "jsonl")
    if several and pages and (output is None or (output.suffix and not output.is_dir())):
        raise UsageError(f"--format {format}: several films need a folder, -o FOLDER")
    stems = [Path(source.name).stem for source in sources]
    twice = next((stem for stem in stems if stems.count(stem) > 1), None)
    if twice is not None and (pages or frames_dir is not None):
        raise UsageError(f"two films would write the same files, {twice}.*; rename one")
    if frames_dir is not None:
        check_folder(frames_dir, "--frames-dir")
    if output is None:
        return
    files = [output]
    if pages and (several or output.is_dir()):
        check_folder(output, "--output")
        files = [output / f"{stem}.{format}" for stem in stems]
    for file in files:
        check_writable(file)
        if format in MARKS and not overwrite:
            check_ours(file, MARKS[format])
