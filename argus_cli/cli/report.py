"""`argus report`: a file of records as a page to look at."""

import os
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from argus_cli.cli.stderr import say
from argus_cli.errors import ExitCode, InputError, UsageError


def report(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS", help="What `-f jsonl -o RESULTS` wrote.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="PAGE",
            help="The page to write. Default: RESULTS with the ending .html.",
        ),
    ] = None,
    embed: Annotated[
        bool,
        typer.Option(
            "--embed",
            help="Put small copies of the pictures into the page, so that it can be moved, and "
            "shows also what browsers don't, e.g. TIFF.",
        ),
    ] = False,
) -> None:  # fmt: skip
    """Show captions beside their pictures, failures first, in one HTML page.

    argus report captions.jsonl -o captions.html
    """
    from argus_cli.output.files import check_writable, write_whole
    from argus_cli.output.gallery import read_results, to_gallery
    from argus_cli.output.lines import lines_told

    try:
        records, broken = read_results(results)
    except OSError as error:
        raise UsageError(f"{results}: {error.strerror or error}") from None
    if broken and not records:
        raise UsageError(f"{results}: holds no records of argus, as -f jsonl writes them")
    page = results.with_suffix(".html") if output is None else output
    if page.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--output {page}: a page's name ends in .html")
    check_writable(page)

    def picture(name: str) -> str | None:
        path = _find(name, results.parent)
        if path is None:
            return None
        return _thumbnail(path) if embed else _url(path, page.parent)

    write_whole(page, to_gallery(results.name, records, picture))
    if broken:
        say(f"{results}: no records, not shown: {lines_told(broken)}")
        raise typer.Exit(ExitCode.SOME_FAILED)


def _find(name: str, beside: Path) -> Path | None:
    """A record's picture: from where argus was run, or else from where the records are."""
    return next((path for path in (Path(name), beside / name) if os.path.isfile(path)), None)


def _url(path: Path, folder: Path) -> str:
    """The way from the page to a file, in whatever bytes its name is."""
    try:
        return quote(os.fsencode(Path(os.path.relpath(path.absolute(), folder)).as_posix()))
    except ValueError:  # on another drive
        return path.absolute().as_uri()


def _thumbnail(path: Path) -> str | None:
    from argus_cli.media.images import open_image
    from argus_cli.output.page import data_uri
    from argus_cli.output.stills import thumbnail

    try:
        return data_uri(thumbnail(open_image(path)))
    except InputError:  # gone bad since
        return None
