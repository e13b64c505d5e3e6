"""The command tree and the one boundary where errors become a line and an exit code."""

import errno
import logging
import os
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from argus_cli.cli import caption as caption_command
from argus_cli.cli import models as models_command
from argus_cli.cli import profile as profile_command
from argus_cli.cli import report as report_command
from argus_cli.cli import video as video_command
from argus_cli.cli.stderr import PrintableFormatter, say
from argus_cli.errors import ArgusError, ExitCode

app = typer.Typer(
    name="argus",
    help="Caption pictures and understand videos on this machine, offline.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("caption", no_args_is_help=True)(caption_command.caption)
app.command("video", no_args_is_help=True)(video_command.video)
app.command("profile")(profile_command.profile)
app.command("report", no_args_is_help=True)(report_command.report)
app.add_typer(models_command.app, name="models")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"argus {version('argus-vlm')}")
        raise typer.Exit


@app.callback(no_args_is_help=True)
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """Options before the command."""


def main() -> None:
    """Run the command line. Typer ends usage errors, Ctrl-C and a closed pipe by itself."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Records are UTF-8 whatever the locale, and a file name's odd bytes come out as they
            # are on disk.
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    try:
        app()
    except Exception as error:
        if os.environ.get("ARGUS_DEBUG") == "1":
            raise
        if isinstance(error, ArgusError):
            message, code = str(error), error.exit_code
        elif isinstance(error, OSError) and error.errno in (
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EFBIG,
        ):
            message, code = f"the output took no more: {error.strerror}", ExitCode.SOME_FAILED
        else:
            message = f"internal error, {type(error).__name__}: {error} (ARGUS_DEBUG=1 shows where)"
            code = ExitCode.SOME_FAILED
        say(message)
        sys.exit(code)
