"""`argus caption`: parse, caption one input after the other, write."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from argus_cli.cli import options as opt
from argus_cli.cli.stderr import say
from argus_cli.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from argus_cli.output.records import Writer
    from argus_cli.schema import Caption, Failure


class Style(StrEnum):
    caption = "caption"
    short = "short"
    detailed = "detailed"
    alt = "alt"
    tags = "tags"


def caption(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT...", help="Pictures; - reads one from stdin."),
    ],
    style: Annotated[Style, typer.Option("--style", rich_help_panel=opt.SAY)] = Style.caption,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            "-p",
            metavar="TEXT",
            rich_help_panel=opt.SAY,
            help="A question or an instruction, instead of a style.",
        ),
    ] = None,  # fmt: skip
    system: opt.System = None,
    model: opt.ModelName = None,
    device: opt.DeviceName = opt.Device.auto,
    dtype: opt.DTypeName = opt.DType.auto,
    threads: opt.Threads = None,
    offline: opt.Offline = False,
    tiles: opt.Tiles = "full",
    max_pixels: opt.MaxPixels = 178_956_970,
    max_new_tokens: opt.MaxNewTokens = 128,
    temperature: opt.Temperature = 0.0,
    top_p: opt.TopP = 1.0,
    seed: opt.Seed = None,
    stop: opt.Stop = None,
    format: Annotated[
        opt.Format, typer.Option("--format", "-f", rich_help_panel=opt.OUTPUT)
    ] = opt.Format.text,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            rich_help_panel=opt.OUTPUT,
            help="Write there instead of stdout: text and jsonl at its end, json anew.",
        ),
    ] = None,  # fmt: skip
    fail_fast: opt.FailFast = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Describe pictures.

    argus caption photo.jpg

    argus caption *.jpg -f jsonl -o captions.jsonl

    argus caption - --prompt "How many people are there?" < photo.jpg
    """
    from argus_cli.media.sources import resolve

    sources = resolve(inputs)  # a missing path costs no model

    from argus_cli.batch import caption_each
    from argus_cli.captioner import Request
    from argus_cli.cli.load import open_captioner, warn_unread
    from argus_cli.output.files import open_output
    from argus_cli.output.records import WRITERS
    from argus_cli.schema import Sampling
    from argus_cli.smolvlm.prompt import STYLES

    request = Request(
        prompt=STYLES[style] if prompt is None else prompt,
        system=system,
        tiles=tiles,
        max_pixels=max_pixels or None,
        sampling=Sampling(max_new_tokens, temperature, top_p, seed, tuple(stop or ())),
    )
    several = len(sources) > 1
    with open_output(output, append=format is not opt.Format.json) as stream:
        captioner = open_captioner(
            model, device, dtype, threads, offline=offline, quiet=quiet, verbose=verbose
        )
        if not quiet:
            warn_unread(captioner, prompt, system)
        writer = WRITERS[format](stream, several)
        live = format is opt.Format.text and not several and stream.isatty()
        results = caption_each(captioner, sources, request, writer.piece if live else None)
        failed = _write_all(results, writer, fail_fast=fail_fast, verbose=verbose)
    if failed:
        if several:
            say(f"{failed} of {len(sources)} inputs failed")
        raise typer.Exit(ExitCode.SOME_FAILED)


def _write_all(
    results: "Iterable[Caption | Failure]", writer: "Writer", *, fail_fast: bool, verbose: bool
) -> int:
    """Write each result as it comes and tell stderr about it; how many failed."""
    from argus_cli.schema import Failure

    failed = 0
    try:
        for result in results:
            writer.write(result)
            if isinstance(result, Failure):
                say(result.message)
                failed += 1
                if fail_fast:
                    break
            elif verbose:
                say(_phases(result))
    finally:  # also when something ends the run early: what is done is done
        writer.close()
    return failed


def _phases(done: "Caption") -> str:
    """What -v says of one picture."""
    seconds = done.seconds
    tiles = f"{done.tiles} tiles ({done.grid[0]}x{done.grid[1]} and the whole)"
    tiles = tiles if done.tiles > 1 else "1 tile"
    rate = (done.new_tokens - 1) / seconds.generate if seconds.generate and done.new_tokens else 0.0
    return (
        f"{done.path}: {done.width}x{done.height}, {tiles}, "
        f"{done.image_tokens} image + {done.prompt_tokens - done.image_tokens} text tokens; "
        f"decode {seconds.decode:.2f} s, preprocess {seconds.preprocess:.2f} s, "
        f"vision {seconds.vision:.2f} s, prefill {seconds.prefill:.2f} s, "
        f"{done.new_tokens} tokens in {seconds.prefill + seconds.generate:.2f} s "
        f"({rate:.1f} tokens/s), {done.finish_reason}, confidence {done.confidence:.2f}"
    )
