"""`argus caption`: parse, caption one input after the other, write."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from argus_cli.cli import options as opt
from argus_cli.cli.stderr import say
from argus_cli.errors import InputError, UsageError

if TYPE_CHECKING:
    from argus_cli.captioner import Captioner, Request
    from argus_cli.media.sources import Source
    from argus_cli.output.journal import Journal
    from argus_cli.output.records import Writer
    from argus_cli.output.sidecars import Sidecars
    from argus_cli.schema import Caption, Failure


class Style(StrEnum):
    caption = "caption"
    short = "short"
    detailed = "detailed"
    alt = "alt"
    tags = "tags"


class Format(StrEnum):
    text = "text"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"


class JsonlSchema(StrEnum):
    argus = "argus"
    imagefolder = "imagefolder"
    kohya = "kohya"


def caption(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUT...", help="Pictures, folders, globs; - reads one picture from stdin."
        ),
    ] = None,
    style: Annotated[Style, typer.Option("--style", rich_help_panel=opt.SAY)] = Style.caption,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt", "-p", metavar="TEXT", rich_help_panel=opt.SAY,
            help="A question or an instruction, instead of a style. Filled in for each picture: "
            "{name} {stem} {folder} {width} {height} {date}.",
        ),
    ] = None,
    system: opt.System = None,
    prefix: Annotated[
        str,
        typer.Option(
            "--prefix", metavar="TEXT", rich_help_panel=opt.SAY,
            help="Put before every caption as it is, e.g. a trigger word and a comma.",
        ),
    ] = "",
    suffix: Annotated[
        str, typer.Option("--suffix", metavar="TEXT", rich_help_panel=opt.SAY, help="Put after it.")
    ] = "",
    lists: Annotated[
        list[str] | None,
        typer.Option(
            "--from", metavar="FILE", rich_help_panel=opt.INPUT,
            help="A list of paths, one a line (or separated by null bytes); - is stdin.",
        ),
    ] = None,
    recursive: Annotated[
        bool,
        typer.Option(
            "--recursive/--no-recursive", rich_help_panel=opt.INPUT, help="Folders in folders too."
        ),
    ] = True,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard", metavar="I/N", rich_help_panel=opt.INPUT,
            help="Only the I-th of N parts: the same split on every machine.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=1, metavar="N", rich_help_panel=opt.INPUT,
            help="Only the first N that are still to be done.",
        ),
    ] = None,
    model: opt.ModelName = None,
    device: opt.DeviceName = opt.Device.auto,
    dtype: opt.DTypeName = opt.DType.auto,
    quantize: opt.QuantizeName = None,
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
        Format, typer.Option("--format", "-f", rich_help_panel=opt.OUTPUT)
    ] = Format.text,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", rich_help_panel=opt.OUTPUT,
            help="Write there instead of stdout. jsonl and csv grow record by record, and the same "
            "command again does what is still missing; text is added at the end, json written "
            "anew.",
        ),
    ] = None,
    jsonl_schema: Annotated[
        JsonlSchema,
        typer.Option(
            "--jsonl-schema", rich_help_panel=opt.OUTPUT,
            help="imagefolder: metadata.jsonl for Hugging Face datasets. kohya: for sd-scripts.",
        ),
    ] = JsonlSchema.argus,
    sidecar: Annotated[
        str | None,
        typer.Option(
            "--sidecar", metavar="EXT", rich_help_panel=opt.OUTPUT,
            help="A file beside each picture: txt, caption or any other ending; xmp is XMP.",
        ),
    ] = None,
    sidecar_dir: Annotated[
        Path | None,
        typer.Option(
            "--sidecar-dir", metavar="FOLDER", rich_help_panel=opt.OUTPUT,
            help="Sidecars go there, in the same sub-folders.",
        ),
    ] = None,
    sidecar_full_name: Annotated[
        bool,
        typer.Option(
            "--sidecar-full-name", rich_help_panel=opt.OUTPUT, help="photo.jpg.txt, not photo.txt."
        ),
    ] = False,
    append: Annotated[
        bool,
        typer.Option("--append", rich_help_panel=opt.OUTPUT, help="To sidecars that are there."),
    ] = False,
    prepend: Annotated[bool, typer.Option("--prepend", rich_help_panel=opt.OUTPUT)] = False,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", rich_help_panel=opt.OUTPUT, help="Do all anew: output and sidecars."
        ),
    ] = False,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed", rich_help_panel=opt.RUN, help="Try again what failed before."
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", rich_help_panel=opt.RUN, help="Only list what would be read."),
    ] = False,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size", min=1, metavar="N", rich_help_panel=opt.RUN,
            help="Captions written together. Default: 8 of one tile, 1 of eight tiles or more.",
        ),
    ] = None,
    fail_fast: opt.FailFast = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:  # fmt: skip
    """Describe pictures.

    argus caption photo.jpg

    argus caption photos/ -f jsonl -o captions.jsonl

    argus caption photos/ --sidecar txt

    argus caption - --prompt "How many people are there?" < photo.jpg
    """
    from argus_cli.media.sources import parse_shard, resolve

    if not inputs and not lists:
        raise UsageError("nothing to caption; name pictures or folders, or a list with --from")
    sources = resolve(  # a missing path costs no model
        inputs or [],
        lists=lists or (),
        recursive=recursive,
        shard=parse_shard(shard) if shard else None,
    )
    if jsonl_schema is not JsonlSchema.argus and format is not Format.jsonl:
        raise UsageError(f"--jsonl-schema {jsonl_schema}: needs -f jsonl")
    beside = _sidecars(
        sources, sidecar, sidecar_dir, sidecar_full_name, append, prepend, overwrite, style
    )
    if dry_run:
        for source in sources[:limit]:
            typer.echo(source.name)
        return

    from argus_cli.batch import caption_each
    from argus_cli.captioner import Request
    from argus_cli.cli.load import open_captioner, warn_unread
    from argus_cli.cli.run import run
    from argus_cli.schema import Sampling

    request = Request(
        style=style,
        prompt=prompt,
        system=system,
        tiles=tiles,
        max_pixels=max_pixels or None,
        sampling=Sampling(max_new_tokens, temperature, top_p, seed, tuple(stop or ())),
    )
    several = len(sources) > 1
    with _opened(format, jsonl_schema, output, several=several, overwrite=overwrite) as (
        writer,
        live,
    ):
        captioner = open_captioner(
            model, device, dtype, threads, quantize, offline=offline, quiet=quiet, verbose=verbose
        )  # fmt: skip
        if not quiet:
            warn_unread(captioner, prompt, system)
        todo, told = _pending(sources, captioner, request, writer, beside, retry_failed)
        if told and not quiet:
            say(told)
        todo = todo[:limit]
        live = live and not several and not prefix and not suffix
        results = caption_each(
            captioner, todo, request, writer.piece if live else None, batch_size=batch_size
        )
        take = partial(_take, writer=writer, beside=beside, words=(prefix, suffix))
        code = run(todo, results, take, fail_fast=fail_fast, quiet=quiet, verbose=verbose)
    if code:
        raise typer.Exit(code)


def _sidecars(
    sources: "list[Source]",
    extension: str | None,
    folder: Path | None,
    full_name: bool,
    append: bool,
    prepend: bool,
    overwrite: bool,
    style: str,
) -> "Sidecars | None":
    modes = {"append": append, "prepend": prepend, "overwrite": overwrite}
    chosen = [f"--{name}" for name, wanted in modes.items() if wanted]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)}: choose one")
    if extension is None:
        options = {"--sidecar-dir": folder, "--sidecar-full-name": full_name,
                   "--append": append, "--prepend": prepend}  # fmt: skip
        if lone := next((name for name, value in options.items() if value), None):
            raise UsageError(f"{lone}: needs --sidecar EXT")
        return None
    from argus_cli.output.sidecars import Mode, plan

    mode = Mode(chosen[0].removeprefix("--") if chosen else "keep")
    return plan(sources, extension, folder=folder, mode=mode, full_name=full_name, style=style)


@contextmanager
def _opened(
    format: Format, schema: JsonlSchema, output: Path | None, *, several: bool, overwrite: bool
) -> "Iterator[tuple[Writer | Journal, bool]]":
    """Where results go, and whether someone watches them grow."""
    from argus_cli.output.files import open_output
    from argus_cli.output.journal import open_journal
    from argus_cli.output.lines import LINES
    from argus_cli.output.records import WRITERS, LineWriter

    if format in (Format.jsonl, Format.csv):
        lines = LINES["csv" if format is Format.csv else schema](output)
        if output and (journal := open_journal(output, lines, overwrite=overwrite)):
            with closing(journal):
                yield journal, False
            return
        with open_output(output, append=True) as stream, closing(LineWriter(stream, lines)) as rows:
            yield rows, False
        return
    if output and overwrite and output.is_file():
        output.unlink()
    with open_output(output, append=format is Format.text) as stream:
        with closing(WRITERS[format](stream, several)) as writer:
            yield writer, format is Format.text and stream.isatty()


def _pending(
    sources: "list[Source]",
    captioner: "Captioner",
    request: "Request",
    writer: "Writer | Journal",
    beside: "Sidecars | None",
    retry_failed: bool,
) -> "tuple[list[Source], str]":
    """What the output or a sidecar still lacks, and what to say of the rest."""
    from argus_cli.captioner.template import differs
    from argus_cli.output.journal import Journal

    told, missing = [], set(sources) if beside is None else {s for s in sources if beside.todo(s)}
    if beside and len(missing) < len(sources):
        told.append(f"{len(sources) - len(missing)} have a sidecar already, --overwrite redoes it")
    if isinstance(writer, Journal):
        question = request.question(captioner.config.model.captions_only)
        asked = None if request.prompt and differs(request.prompt) else question
        made_by = (captioner.folder.name, captioner.folder.revision, asked)
        rows, message = writer.pending(sources, made_by, retry_failed=retry_failed)
        missing = set(rows) | (missing if beside else set())
        told.append(message)
    return [source for source in sources if source in missing], "; ".join(filter(None, told))


def _take(
    source: "Source",
    result: "Caption | Failure",
    *,
    writer: "Writer | Journal",
    beside: "Sidecars | None",
    words: tuple[str, str],
) -> "Caption | Failure":
    """Write a result wherever it goes; a sidecar that can't be written makes it a failure."""
    from argus_cli.schema import Caption, Failure

    if isinstance(result, Caption):
        prefix, suffix = words
        result = replace(result, caption=f"{prefix}{result.caption}{suffix}")
        try:
            if beside:
                beside.write(source, result)
        except InputError as error:
            kind = type(error).__name__
            result = Failure(source.name, kind, str(error), source.bytes, source.mtime_ns)
    writer.write(result)
    return result
