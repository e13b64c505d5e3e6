"""Many inputs -> one Caption or Failure each, in order."""

from collections.abc import Callable, Iterable, Iterator

from argus_cli.captioner import Captioner, Request
from argus_cli.errors import InputError
from argus_cli.media.sources import Source
from argus_cli.schema import Caption, Failure


def caption_each(
    captioner: Captioner,
    sources: Iterable[Source],
    request: Request,
    on_text: Callable[[str], None] | None = None,
) -> Iterator[Caption | Failure]:
    """One result per source; a bad input costs its own. ``on_text`` sees captions grow."""
    for source in sources:
        try:
            stream = captioner.stream(source.file, request)
            for piece in stream:
                if on_text:
                    on_text(piece)
            yield stream.result
        except InputError as error:
            yield Failure(source.name, type(error).__name__, str(error))
