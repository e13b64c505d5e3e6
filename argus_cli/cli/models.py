"""`argus models`: what is there, what is on disk, fetch, check, delete."""

import json
from typing import Annotated

import typer

from argus_cli.cli.stderr import say_what_the_hub_says
from argus_cli.errors import ExitCode

app = typer.Typer(
    help="The models argus knows: list, fetch, check and remove them.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name of `argus models list`.")]


@app.command("list")
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array.")] = False,
) -> None:
    """Every model, its size, and whether it is on this machine."""
    from argus_cli.zoo.catalog import status
    from argus_cli.zoo.manifest import load_manifests

    rows = [(manifest, status(manifest)) for manifest in load_manifests().values()]
    if as_json:
        table = [
            {
                "name": manifest.name, "repo": manifest.repo, "revision": manifest.revision,
                "licence": manifest.licence, "parameters": manifest.parameters,
                "memory_bytes": manifest.memory_bytes, "presence": there.presence.value,
                "bytes_on_disk": there.bytes_on_disk,
            }
            for manifest, there in rows
        ]  # fmt: skip
        typer.echo(json.dumps(table, indent=2))
        return
    for manifest, there in rows:
        typer.echo(
            f"{manifest.name:<14} {manifest.parameters / 1e6:6.0f} M  "
            f"{manifest.memory_bytes / 1e9:5.2f} GB  {there.presence.value:<9} "
            f"{manifest.licence:<11} {manifest.summary}"
        )


@app.command()
def show(name: Name) -> None:
    """What a model is, what it needs, where it comes from."""
    from argus_cli.zoo.catalog import named, status

    manifest = named(name)
    there = status(manifest)
    facts = {
        "summary": manifest.summary,
        "repository": manifest.repo or "bundled with argus",
        "revision": manifest.revision,
        "licence": manifest.licence,
        "parameters": f"{manifest.parameters:,}",
        "memory": f"{manifest.memory_bytes / 1e9:.2f} GB in bfloat16, working memory on top",
        "on disk": f"{there.presence.value}, {there.bytes_on_disk / 1e6:.1f} MB",
        "files": ", ".join(file.path for file in manifest.files),
    }
    typer.echo(manifest.name)
    for key, value in facts.items():
        typer.echo(f"  {key:<11} {value}")


@app.command()
def pull(
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Check what is there anew.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")] = False,
) -> None:
    """Fetch a model into the Hugging Face cache; goes on where it was broken off."""
    from argus_cli.zoo.catalog import named
    from argus_cli.zoo.download import pull as fetch

    say_what_the_hub_says()
    folder = fetch(named(name), force=force, progress=not quiet)
    typer.echo(folder.path)


@app.command()
def verify(name: Name) -> None:
    """Read every file of a model and compare its size and sha256."""
    from argus_cli.zoo.catalog import named
    from argus_cli.zoo.catalog import verify as check
    from argus_cli.zoo.manifest import FileState

    states = check(named(name))
    for path, state in states.items():
        typer.echo(f"{path:<36} {state.value}")
    if any(state is not FileState.OK for state in states.values()):
        typer.echo(f"argus: {name} is damaged; `argus models pull {name}` mends it", err=True)
        raise typer.Exit(ExitCode.MODEL)


@app.command()
def path(name: Name) -> None:
    """The folder a model is in."""
    from argus_cli.zoo.catalog import find

    typer.echo(find(name).path)


@app.command()
def remove(name: Name) -> None:
    """Delete a model from the Hugging Face cache."""
    from argus_cli.zoo.catalog import named
    from argus_cli.zoo.catalog import remove as delete

    typer.echo(f"{delete(named(name)) / 1e6:.1f} MB freed")
