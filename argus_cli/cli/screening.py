"""Shows films to the model one after the other and writes what it says, as it says it."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from argus_cli.captioner import Captioner, FilmRequest
from argus_cli.cli.stderr import say
from argus_cli.errors import InputError
from argus_cli.media.sources import Source
from argus_cli.output.files import open_output
from argus_cli.output.films import FilmWriter, PageFilms, RecordFilms, TextFilms
from argus_cli.output.records import WRITERS, printable
from argus_cli.output.stills import save_still, thumbnail
from argus_cli.schema import Failure, Frame, VideoCaption

if TYPE_CHECKING:
    from PIL.Image import Image


class Screening:
    """One run of `argus video`."""

    def __init__(
        self,
        captioner: Captioner,
        request: FilmRequest,
        *,
        format: str,
        output: Path | None,
        frames_dir: Path | None,
        overwrite: bool,
        quiet: bool,
        verbose: bool,
    ):
        self._captioner, self._request = captioner, request
        self._format, self._output, self._frames_dir = format, output, frames_dir
        self._overwrite, self._quiet, self._verbose = overwrite, quiet, verbose
        self._thumbnails: dict[float, bytes] = {}

    def show(self, sources: list[Source], *, fail_fast: bool) -> int:
        """Show every film; how many failed."""
        failed = 0
        with ExitStack() as stack:
            writer = self._writer(stack, several=len(sources) > 1)
            stack.push(lambda error, *_: writer.close(whole=error is None))
            for source in sources:
                self._thumbnails.clear()
                writer.begin(source.name)
                try:
                    result: VideoCaption | Failure = self._watch(source, writer)
                except InputError as error:
                    result = Failure(source.name, type(error).__name__, str(error))
                    say(str(error))
                    failed += 1
                writer.write(result, self._thumbnails)
                if failed and fail_fast:
                    break
        return failed

    def _watch(self, source: Source, writer: FilmWriter) -> VideoCaption:
        stream = self._captioner.segments(source.file, self._request)
        bar = tqdm(
            desc=printable(Path(source.name).name)[-24:], total=0, leave=False,
            disable=True if self._quiet else None,  # None: only on a terminal
            bar_format="{desc}: {n:.0f} of {total:.0f} s of film [{elapsed}<{remaining}]",
        )  # fmt: skip

        def see(frame: Frame, picture: "Image") -> None:
            if self._format == "html":
                self._thumbnails[frame.time] = thumbnail(picture)
            if self._frames_dir is not None:
                save_still(self._frames_dir, source.name, frame, picture)
            if bar.total != stream.length:  # known from the first frame on
                bar.total = stream.length
                bar.refresh()
            bar.update(min(max(stream.progress, 0.0), stream.length) - bar.n)

        stream.on_frame = see
        with bar:
            for segment in stream:
                bar.clear()
                writer.segment(segment)
        if self._verbose:
            say(_phases(stream.result))
        return stream.result

    def _writer(self, stack: ExitStack, *, several: bool) -> FilmWriter:
        pages = self._format not in WRITERS
        if pages and self._output is not None:
            return PageFilms(self._format, self._output, several)
        append = self._format != "json" and not self._overwrite
        stream = stack.enter_context(open_output(self._output, append=append))
        if pages:
            return PageFilms(self._format, stream, several)
        if self._format == "text":
            return TextFilms(stream, several)
        return RecordFilms(WRITERS[self._format](stream, several))


def _phases(done: VideoCaption) -> str:
    """What -v says of one film."""
    seconds = done.seconds
    return (
        f"{done.path}: {done.width}x{done.height}, {done.duration:.1f} s, "
        f"{len(done.frames)} frames, {done.frames_reused} of them like the one before; "
        f"decode {seconds.decode:.2f} s, vision {seconds.vision:.2f} s, "
        f"generate {seconds.generate:.2f} s"
    )
