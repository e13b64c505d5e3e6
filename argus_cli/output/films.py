"""Timelines in every format. A writer is told of each film's start, segments and end."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, TextIO

from argus_cli.output.files import deliver
from argus_cli.output.lines import RECORD
from argus_cli.output.page import GENERATOR
from argus_cli.output.records import Writer, printable
from argus_cli.output.storyboard import to_html
from argus_cli.output.subtitles import NOTE, SUBTITLES
from argus_cli.schema import Failure, Segment, VideoCaption
from argus_cli.undecoded import escaped

Thumbnails = Mapping[float, bytes]
# By what a file of ours is known, early in it; SRT and TSV have no room for that.
MARKS = {"json": RECORD, "jsonl": RECORD, "vtt": NOTE, "html": GENERATOR, "srt": "", "tsv": ""}


class FilmWriter(Protocol):
    """One format."""

    def begin(self, name: str) -> None: ...

    def segment(self, segment: Segment) -> None: ...

    def write(self, result: VideoCaption | Failure, thumbnails: Thumbnails) -> None: ...

    def close(self, whole: bool = True) -> None:
        """The end; not ``whole`` when something has ended the run early."""


class TextFilms:
    """``[mm:ss-mm:ss] caption`` as segments come, then the summary; several films under names."""

    def __init__(self, stream: TextIO, several: bool):
        self._stream, self._several, self._films = stream, several, 0

    def begin(self, name: str) -> None:
        if self._several:
            self._line(f"{chr(10) if self._films else ''}{printable(escaped(name))}")
        self._films += 1

    def segment(self, segment: Segment) -> None:
        self._line(printable(str(segment)))

    def write(self, result: VideoCaption | Failure, thumbnails: Thumbnails) -> None:
        if isinstance(result, VideoCaption) and result.summary is not None:
            self._line(f"Summary: {printable(result.summary)}")

    def close(self, whole: bool = True) -> None:
        pass

    def _line(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


class RecordFilms:
    """One record a film."""

    def __init__(self, records: Writer):
        self._records = records

    def begin(self, name: str) -> None:
        pass

    def segment(self, segment: Segment) -> None:
        pass

    def write(self, result: VideoCaption | Failure, thumbnails: Thumbnails) -> None:
        self._records.write(result)

    def close(self, whole: bool = True) -> None:
        self._records.close(whole)


class PageFilms:
    """One document a film: to a stream, into a file, or as name.EXTENSION into a folder."""

    def __init__(self, extension: str, target: TextIO | Path, several: bool):
        self._extension, self._target = extension, target
        self._folder = isinstance(target, Path) and (several or target.is_dir())
        self._render: Callable[[VideoCaption, Thumbnails], str] = (
            to_html if extension == "html" else lambda video, _: SUBTITLES[extension](video)
        )

    def begin(self, name: str) -> None:
        pass

    def segment(self, segment: Segment) -> None:
        pass

    def write(self, result: VideoCaption | Failure, thumbnails: Thumbnails) -> None:
        if isinstance(result, Failure):
            return
        page = self._render(result, thumbnails)
        if isinstance(self._target, Path):
            path = self._target
            if self._folder:
                path /= f"{Path(result.path).stem}.{self._extension}"
                if path.is_symlink():  # nobody named it: it may lead anywhere
                    path.unlink()
            deliver(path, page)
        else:
            self._target.write(page)
            self._target.flush()

    def close(self, whole: bool = True) -> None:
        pass
