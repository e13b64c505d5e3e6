"""Where the results of `argus caption` go: stdout or a file, and a sidecar beside each picture."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from argus_cli.captioner import Captioner, Request
from argus_cli.captioner.template import differs, literal
from argus_cli.errors import InputError
from argus_cli.media.sources import Source
from argus_cli.output.files import check_ours, open_output
from argus_cli.output.journal import Journal, open_journal
from argus_cli.output.lines import LINES, RECORD
from argus_cli.output.pending import Pending
from argus_cli.output.records import WRITERS, LineWriter, Writer
from argus_cli.output.sidecars import Mode, Sidecars
from argus_cli.schema import Caption, Failure


@dataclass
class Outlets:
    """All that a result is written to. ``words`` are put before and after every caption."""

    writer: Writer | Journal
    sidecars: Sidecars | None
    words: tuple[str, str]
    overwrite: bool
    live: bool = False  # whether someone watches the writer's stream

    @property
    def on_text(self) -> Callable[[str], None] | None:
        """Takes one caption while it grows."""
        return self.writer.piece if self.live and self.words == ("", "") else None

    @property
    def way_on(self) -> str:
        """What to do after a run that was stopped."""
        if isinstance(self.writer, Journal):
            return "the same command goes on" + (" without --overwrite" if self.overwrite else "")
        if self.sidecars and self.sidecars.mode is Mode.keep:
            return "the same command goes on"
        return ""

    def pending(
        self, sources: Sequence[Source], captioner: Captioner, request: Request, retry_failed: bool
    ) -> Pending[Source]:
        """What is still to be done, and what to tell the user of the rest."""
        bare = self._bare(sources)
        if isinstance(self.writer, Journal):
            made_by = (
                captioner.folder.name, captioner.folder.revision, *_asked(captioner, request),
            )  # fmt: skip
            return self.writer.pending(sources, made_by, retry_failed=retry_failed, lacking=bare)
        if self.sidecars is None or len(bare) == len(sources):
            return Pending(list(sources))
        kept = f"{len(sources) - len(bare)} of {len(sources)} have a sidecar already"
        todo = [source for source in sources if source in bare]
        return Pending(todo, kept + ", --overwrite redoes them")

    def take(self, source: Source, result: Caption | Failure) -> Caption | Failure:
        """Write a result; a sidecar that can't be written is the picture's failure.

        Its record is written all the same: the caption is there, and the next run does the rest.
        """
        if isinstance(result, Caption) and result.caption.strip():
            prefix, suffix = self.words
            result = replace(result, caption=f"{prefix}{result.caption}{suffix}")
        written = result
        if isinstance(result, Caption) and self.sidecars:
            try:
                self.sidecars.write(source, result)
            except InputError as error:
                result = Failure(source.name, type(error).__name__, str(error))
        self.writer.write(written)
        return result

    def _bare(self, sources: Sequence[Source]) -> set[Source]:
        """The sources that lack a sidecar they should have."""
        if self.sidecars is None:
            return set()
        return {source for source in sources if self.sidecars.todo(source)}


def _asked(captioner: Captioner, request: Request) -> tuple[str, str | None]:
    """Style and prompt as records have them; a prompt that differs by picture is None."""
    question = request.question(captioner.config.model.captions_only)
    if request.prompt is None:
        return request.style, question
    return "", None if differs(question) else literal(question)


@contextmanager
def open_outlets(
    format: str,
    schema: str,
    output: Path | None,
    sidecars: Sidecars | None,
    *,
    words: tuple[str, str],
    several: bool,
    overwrite: bool,
) -> Iterator[Outlets]:
    """What is opened here is closed at the end, whatever happened in between.

    Raises UsageError for an output that can't be written to, before anything is.
    """
    if format == "json" and output and not overwrite:
        check_ours(output, RECORD)
    if format in ("jsonl", "csv"):
        lines = LINES["csv" if format == "csv" else schema](output)
        if output and (journal := open_journal(output, lines, overwrite=overwrite)):
            try:
                yield Outlets(journal, sidecars, words, overwrite)
            finally:
                journal.close()
            return
        with open_output(output, append=True) as stream:
            yield Outlets(LineWriter(stream, lines), sidecars, words, overwrite)
        return
    with open_output(output, append=format == "text" and not overwrite) as stream:
        writer = WRITERS[format](stream, several)
        outlets = Outlets(writer, sidecars, words, overwrite)
        outlets.live = format == "text" and not several and stream.isatty()
        try:
            yield outlets
        except BaseException:
            writer.close(whole=False)
            raise
        writer.close()
