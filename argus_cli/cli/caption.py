"""`argus caption`: options, checks before any model is loaded, and the run."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from argus_cli.cli import options as opt
from argus_cli.cli.stderr import say
from argus_cli.errors import ExitCode, UsageError
from argus_cli.output.records import printable

if TYPE_CHECKING:
    from argus_cli.captioner import Request
    from argus_cli.media.sources import Source
    from argus_cli.output.sidecars import Sidecars


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
    parquet = "parquet"  # with --ray


class JsonlSchema(StrEnum):
    argus = "argus"
    imagefolder = "imagefolder"
    kohya = "kohya"


def caption(
    context: typer.Context,
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
            "--prompt", "-p", metavar="TEXT", callback=opt.words, rich_help_panel=opt.SAY,
            help="A question or an instruction, instead of a style. Filled in for each picture: "
            "{name} {stem} {folder} {width} {height} {date}.",
        ),
    ] = None,
    system: opt.System = None,
    prefix: Annotated[
        str,
        typer.Option(
            "--prefix", metavar="TEXT", callback=opt.words, rich_help_panel=opt.SAY,
            help="Put before every caption as it is, e.g. a trigger word and a comma.",
        ),
    ] = "",
    suffix: Annotated[
        str,
        typer.Option(
            "--suffix", metavar="TEXT", callback=opt.words, rich_help_panel=opt.SAY,
            help="Put after it.",
        ),
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
        Format | None,
        typer.Option(
            "--format", "-f", rich_help_panel=opt.OUTPUT,
            help="Default: by the ending of --output, else text.",
        ),
    ] = None,
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
    prepend: Annotated[
        bool,
        typer.Option("--prepend", rich_help_panel=opt.OUTPUT, help="To sidecars that are there."),
    ] = False,
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
        typer.Option("--dry-run", rich_help_panel=opt.RUN, help="Only list the pictures."),
    ] = False,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size", min=1, metavar="N", rich_help_panel=opt.RUN,
            help="Captions written together. Default: 8 of one tile, 1 of eight tiles or more.",
        ),
    ] = None,
    timeout: opt.Timeout = None,
    ray: opt.Ray = None,
    fail_fast: opt.FailFast = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:  # fmt: skip
    """Describe pictures.

    argus caption photo.jpg

    argus caption photos/ -f jsonl -o captions.jsonl

    argus caption photos/ --sidecar txt

    argus caption photo.jpg -m smolvlm2-500m --prompt "How many people are there?"
    """
    from argus_cli.media.sources import falls_to, parse_shard, resolve, spare_media

    if not inputs and not lists:
        raise UsageError("nothing to caption; name pictures or folders, or a list with --from")

    def asked() -> "Request":  # imports torch, for which refusals don't wait
        from argus_cli.captioner import Request
        from argus_cli.schema import Sampling

        return Request(
            style=style, prompt=prompt, system=system, tiles=tiles, max_pixels=max_pixels or None,
            sampling=Sampling(max_new_tokens, temperature, top_p, seed, tuple(stop or ())),
        )  # fmt: skip

    if ray is not None:
        from argus_cli.batch import TIMEOUT_S
        from argus_cli.cli.cluster import run_many

        return run_many(
            context, ray, inputs or [], asked(), output, format,
            model=model, device=device, dtype=dtype,
            quantize=quantize, threads=threads, offline=offline, quiet=quiet,
            timeout=TIMEOUT_S if timeout is None else timeout, batch_size=batch_size,
            lists=lists or (), recursive=recursive, shard=shard, limit=limit,
            retry_failed=retry_failed, dry_run=dry_run,
        )  # fmt: skip
    part = parse_shard(shard) if shard else None
    kind = format or opt.format_of(output, Format)
    if kind is Format.parquet:
        raise UsageError("--format parquet: needs --ray")
    # A missing path costs no model.
    sources = resolve(inputs or [], lists=lists or (), recursive=recursive)
    spare_media(output, [*(source.file for source in sources), *(lists or ())])
    if jsonl_schema is not JsonlSchema.argus and kind is not Format.jsonl:
        raise UsageError(f"--jsonl-schema {jsonl_schema}: needs -f jsonl")
    beside = _sidecars(
        sources, sidecar, sidecar_dir, sidecar_full_name, append, prepend, overwrite, style
    )
    if dry_run:
        for source in sources[:limit]:
            typer.echo(printable(source.name))
        return

    from argus_cli.batch import TIMEOUT_S, caption_each
    from argus_cli.cli.load import open_captioner, warn_unguarded, warn_unread
    from argus_cli.cli.outlets import open_outlets
    from argus_cli.cli.run import run

    request = asked()
    # One file that was named is captioned without its name; what a folder or a glob holds is not.
    names = [source.name for source in sources]
    several = len(names) > 1 or names not in (inputs, ["<stdin>"])
    words = (prefix, suffix)
    if part:
        sources = [source for source in sources if falls_to(part, source)]
    with open_outlets(
        kind, jsonl_schema, output, beside, words=words, several=several, overwrite=overwrite
    ) as outlets:
        captioner = open_captioner(
            model, device, dtype, quantize, threads, offline=offline, quiet=quiet, verbose=verbose
        )
        if not quiet:
            warn_unread(captioner, prompt, system, style)
            warn_unguarded(timeout)
        pending = outlets.pending(sources, captioner, request, retry_failed)
        if pending.told and not quiet:
            say(pending.told)
        todo = pending.todo[:limit]
        if timeout is None and len(todo) > 1:  # a process would cost a single one its start-up
            timeout = TIMEOUT_S
        results = caption_each(
            captioner, todo, request, outlets.on_text, batch_size=batch_size, timeout=timeout
        )
        lines_are_seen = output is None and kind is not Format.json and sys.stdout.isatty()
        code = run(
            todo, results, outlets.take, outlets.way_on,
            fail_fast=fail_fast, bar=not quiet and not lines_are_seen, verbose=verbose,
        )  # fmt: skip
    if code or pending.failed:
        raise typer.Exit(code or ExitCode.SOME_FAILED)


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
