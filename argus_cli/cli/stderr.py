"""What argus says on stderr: one line each, in which nothing can steer the terminal."""

import logging

import typer

from argus_cli.output.records import printable


def say(text: str) -> None:
    """One line under argus's name."""
    typer.echo(f"argus: {printable(text)}", err=True)


class PrintableFormatter(logging.Formatter):
    """Warnings of the library, said in the same way."""

    def format(self, record: logging.LogRecord) -> str:
        return f"argus: {printable(record.getMessage())}"
