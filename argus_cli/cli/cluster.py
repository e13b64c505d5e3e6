"""`--ray`: the same run on a cluster. Which options it takes, and what stderr is told."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

import typer

from argus_cli.captioner import FilmRequest, Request
from argus_cli.captioner.template import differs, literal
from argus_cli.cli.run import Result, run
from argus_cli.cli.stderr import say
from argus_cli.cluster.actors import CaptionActor, FilmActor, model_here
from argus_cli.cluster.job import cluster, cpus_of_an_actor, need_ray, run_on_cluster
from argus_cli.cluster.parts import FORMATS, Parts, pending
from argus_cli.cluster.places import find_items
from argus_cli.errors import ExitCode, UsageError
from argus_cli.media.sources import FILMS, PICTURES, Source, falls_to, parse_shard
from argus_cli.output.records import printable
from argus_cli.smolvlm.config import read_config
from argus_cli.zoo.catalog import ModelFolder

# What makes sense for one machine alone, or one output file.
_LOCAL = {
    "append", "fail_fast", "frames_dir", "jsonl_schema", "overwrite", "prefix", "prepend",
    "sidecar", "sidecar_dir", "sidecar_full_name", "suffix", "verbose",
}  # fmt: skip


def run_many(
    context: typer.Context,
    address: str,
    inputs: Sequence[str],
    request: Request | FilmRequest,
    output: Path | None,
    format: str | None,
    *,
    model: str | None,
    device: str,
    dtype: str,
    quantize: str | None,
    threads: int | None,
    offline: bool,
    quiet: bool,
    timeout: float | None = None,
    batch_size: int | None = None,
    lists: Sequence[str] = (),
    recursive: bool = True,
    shard: str | None = None,
    limit: int | None = None,
    retry_failed: bool = False,
    dry_run: bool = False,
) -> None:
    """Caption all inputs, or those that OUT lacks. Raises typer.Exit where some failed."""
    kind = PICTURES if isinstance(request, Request) else FILMS
    _refuse(context, inputs, output, format)
    part = parse_shard(shard) if shard else None
    items = find_items(inputs, lists, kind, recursive)
    if part:
        items = [i for i in items if falls_to(part, Source(i.name, Path(), folder=i.folder))]
    if dry_run:
        for item in items[:limit]:
            typer.echo(printable(item.name))
        return
    folder = model_here(model, offline=offline)
    actor_class = CaptionActor if isinstance(request, Request) else FilmActor
    place = _uri(cast(Path, output))
    parts = Parts(place, format or _format_of(place), actor_class.record)
    known = parts.index()
    parts = parts.after(known)
    todo, told, failed = pending(items, known, _made_by(folder, request), retry_failed=retry_failed)
    if told and not quiet:
        say(told)
    todo = todo[:limit]
    code = ExitCode.OK
    if todo:
        parts.check_writable()
        with cluster(address):
            actor = actor_class(
                folder.name if folder.manifest else str(folder.path), request, device=device,
                dtype=dtype, quantize=quantize, threads=threads or cpus_of_an_actor(device),
                batch_size=batch_size, timeout=timeout, offline=offline,
            )  # fmt: skip
            code = run(
                cast(Sequence[Source], todo),
                cast(Iterable[Result], run_on_cluster(actor, todo, parts)),
                lambda _, result: result, "the same command goes on",
                fail_fast=False, bar=not quiet, verbose=False,
            )  # fmt: skip
    if code != ExitCode.INTERRUPTED:
        parts.prune(known, {item.name for item in todo})
    if code or failed:
        raise typer.Exit(code or ExitCode.SOME_FAILED)


def _refuse(
    context: typer.Context, inputs: Sequence[str], output: Path | None, format: str | None
) -> None:
    """Raise UsageError for what makes no sense on a cluster."""
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if parameter.name in _LOCAL and source and source.name != "DEFAULT":
            raise UsageError(f"{parameter.opts[0]}: not with --ray")
    if "-" in inputs:
        raise UsageError("-: not with --ray; no other machine reads this one's stdin")
    if format not in (None, *FORMATS):
        raise UsageError(f"--format {format}: with --ray there are {' and '.join(FORMATS)}")
    if output is None:
        raise UsageError("--ray: needs -o OUT, a folder or URI for the parts")
    if output.is_file():
        raise UsageError(f"--output {output}: is a file; with --ray it is a folder")
    need_ray()


def _uri(output: Path) -> str:
    """The output as it was written; a Path takes one slash from s3://BUCKET."""
    return re.sub(
        r"^(?!file:)([a-z][a-z0-9+.-]+):/(?!/)", r"\1://", str(output), flags=re.IGNORECASE
    )


def _format_of(place: str) -> str:
    """The format that its ending names, else jsonl."""
    return next((name for name in FORMATS if place.lower().endswith(f".{name}")), FORMATS[0])


def _made_by(folder: ModelFolder, request: Request | FilmRequest) -> tuple[str | None, ...]:
    """The values of lines.MADE_BY in records to come; None for what isn't the same in all."""
    if isinstance(request, FilmRequest):
        return folder.name, folder.revision, None, request.prompt
    if request.prompt is None:
        only = read_config(folder.path).model.captions_only
        return folder.name, folder.revision, request.style, request.question(only)
    prompt = None if differs(request.prompt) else literal(request.prompt)
    return folder.name, folder.revision, "", prompt
