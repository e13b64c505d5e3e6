"""The command tree and the one boundary where errors become a line and an exit code."""

import logging
import os
import signal
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
from argus_cli.errors import ArgusError, ExitCode, UsageError
from argus_cli.output.files import TAKES_NO_MORE

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
    _open_closed_streams()
    _keep_stderr()
    _heed_signals()
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Records are UTF-8 whatever the locale, and a file name's odd bytes come out as they
            # are on disk.
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    try:
        _check_folder()
        app()
        return
    except Exception as error:
        if os.environ.get("ARGUS_DEBUG") == "1":
            raise
        message = _message(error)
        code = error.exit_code if isinstance(error, ArgusError) else ExitCode.SOME_FAILED
        if isinstance(error, OSError):  # what Python still holds for stdout would fail once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # Here the exception is gone, and with it what its frames held, should memory have run out.
    say(message)
    sys.exit(code)


def _message(error: Exception) -> str:
    if isinstance(error, ArgusError):
        return str(error)
    if isinstance(error, OSError) and error.errno in TAKES_NO_MORE and error.filename is None:
        return f"stdout took no more: {error.strerror}"
    if isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY):
        return "not enough memory; use a smaller --model, --dtype bfloat16 or fewer --threads"
    if "No usable temporary directory" in str(error):  # what torch imports may ask for one
        return "no folder for temporary files can be written; set TMPDIR to one"
    return f"internal error, {type(error).__name__}: {error} (ARGUS_DEBUG=1 shows where)"


# How allocators and loaders say it that know no MemoryError.
_NO_MEMORY = (
    "not enough memory",
    "out of memory",
    "Cannot allocate memory",
    "failed to map",
    "could not create a primitive",
)


def _open_closed_streams() -> None:
    """Give each standard stream that was closed a file, lest an output become one of them.

    As in GNU's tools, what is written to a closed stdout fails; a closed stderr takes all.
    """
    for number, (name, access, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is None and os.open(os.devnull, access) == number:
            stream = open(number, mode, closefd=False)
            stream.buffer.raw.name = f"<{name}>"  # type: ignore[attr-defined]  # what messages say
            setattr(sys, name, stream)


_STREAMS = (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))


def _keep_stderr() -> None:
    """Have stderr to ourselves: what C libraries print past Python of a file goes nowhere.

    So it does in workers; but one picture alone is read in this process.
    """
    if sys.stderr is sys.__stderr__ and os.environ.get("ARGUS_DEBUG") != "1":
        sys.stderr = open(os.dup(2), "w", buffering=1)
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)


def _check_folder() -> None:
    """In a folder that was removed neither a relative path nor MKL works."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UsageError("the current folder has been removed; change to another") from None


def _heed_signals() -> None:
    """What asks a process to end is Ctrl-C to us, except where it is to be ignored (nohup)."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
