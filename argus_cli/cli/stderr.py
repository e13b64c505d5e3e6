"""What argus says on stderr: one line each, in which nothing can steer the terminal."""

import logging
from contextlib import suppress

import typer

from argus_cli.output.records import printable

_LONGEST = 4096  # characters: what an odd file holds may be quoted in an error


def say(text: str) -> None:
    """One line under argus's name. A stderr that takes nothing ends no run."""
    with suppress(OSError):
        typer.echo(_line(text), err=True)


class PrintableFormatter(logging.Formatter):
    """Warnings of the library, said in the same way."""

    def format(self, record: logging.LogRecord) -> str:
        return _line(record.getMessage())


def say_what_the_hub_says() -> None:
    """Have huggingface_hub's warnings, of which some are a server's words, said in the same way."""
    from argus_cli.zoo.catalog import hub_settings

    hub_settings()  # before anything else of it is imported
    import huggingface_hub.utils.logging  # noqa: F401  # adds a handler of its own

    logging.getLogger("huggingface_hub").handlers.clear()


def _line(text: str) -> str:
    return f"argus: {printable(text[:_LONGEST])}"
