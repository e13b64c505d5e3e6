"""A film looked at, here or in a process of its own that it can take down without harm.

Knows nothing of what is asked about it. No torch: that process would load it too.
"""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Concatenate, ParamSpec, Protocol, TypeVar, cast

from argus_cli.errors import VideoError
from argus_cli.media.images import DEFAULT_MAX_PIXELS, name_of
from argus_cli.media.reels import laid_down, seekable
from argus_cli.media.videos import FilmSource
from argus_cli.workers import Worker, WorkerLost, WorkersUnavailable, arm, memory_for, within

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

P = ParamSpec("P")
T = TypeVar("T")
logger = getLogger(__name__)

READS = 8  # times its size that a film may be read at one go before that goes round in circles


class AskFilm(Protocol):
    """Calls ``function(film, ...)``, of media.videos or media.scenes, wherever the film is read."""

    def __call__(
        self,
        function: Callable[Concatenate[FilmSource, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T: ...


@contextmanager
def film_reader(film: FilmSource, timeout_s: float | None) -> Iterator[AskFilm]:
    """A way to ask a film, as often as one likes even if it comes through a pipe.

    With ``timeout_s`` it is read in a worker, whose end, and a VideoError, is a film of which for
    so many seconds no frame comes out and nothing more is read. Raises VideoError.
    """
    name = name_of(film)
    with ExitStack() as stack:
        try:
            if timeout_s and (fifo := _fifo(film)):
                pipe = stack.enter_context(within(timeout_s, _Pipe, fifo, timeout_s))
                film = cast(BinaryIO, pipe)
            if timeout_s or not _is_rereadable(film):
                film = stack.enter_context(seekable(film))
            ask = _ask_worker(cast(BinaryIO, film), name, timeout_s, stack) if timeout_s else None
        except OSError as error:
            raise VideoError(f"{name}: {error.strerror or error}") from error
        try:
            yield ask or (lambda function, *args, **kwargs: function(film, *args, **kwargs))
        except WorkerLost as error:
            raise VideoError(f"{name}: {error}") from error


def _is_rereadable(film: FilmSource) -> bool:
    """Bytes and files can be read as often as needed, a pipe and its path once."""
    return isinstance(film, str | os.PathLike | bytes) and not _fifo(film)


def _fifo(film: FilmSource) -> Path | None:
    """The path of a named pipe."""
    path = Path(film) if isinstance(film, str | os.PathLike) else None
    return path if path and path.is_fifo() else None


class _Pipe(io.FileIO):
    """A named pipe, for whose writer and next bytes nobody waits longer than ``timeout_s``."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__(os.fspath(path))
        self._timeout_s = timeout_s

    def read(self, size: int | None = -1) -> bytes:
        return within(self._timeout_s, super().read, size)


def _ask_worker(source: BinaryIO, name: str, timeout_s: float, stack: ExitStack) -> AskFilm | None:
    """None where no worker can be started."""
    file = _numbered(source, stack)
    try:
        worker = Worker(timeout_s, memory_for(DEFAULT_MAX_PIXELS), file)
    except WorkersUnavailable as error:
        logger.warning("%s: read without a time limit: %s", name, error)
        return None
    stack.callback(worker.close)

    def ask(
        function: Callable[Concatenate[FilmSource, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        handed = file.fileno(), name, timeout_s
        return worker.call(_ask, handed, function, *args, **kwargs)  # type: ignore[arg-type]

    return ask


def _numbered(source: BinaryIO, stack: ExitStack) -> BinaryIO:
    """The same as a file of the operating system's, which another process can be handed."""
    if isinstance(getattr(source, "raw", source), io.FileIO):
        source.flush()  # what we wrote ourselves
        if source.fileno() > 2:
            return source
        # Of stdin's number the worker has a stream of its own.
        return stack.enter_context(os.fdopen(os.dup(source.fileno()), "rb"))
    source.seek(0)
    return stack.enter_context(laid_down(source))


def _ask(
    handed: tuple[int, str, float],
    function: Callable[Concatenate[FilmSource, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """In the worker: the function's answer about the film that was handed over."""
    return function(io.BufferedReader(_Handed(*handed)), *args, **kwargs)


class _Handed(io.FileIO):
    """A film under the name that messages call it; reading on gives the worker more time."""

    def __init__(self, number: int, name: str, timeout_s: float) -> None:
        super().__init__(number, closefd=False)
        self.name = name
        self._timeout_s = timeout_s
        self._left = READS * max(os.fstat(number).st_size, 2**20)

    def readinto(self, buffer: "WriteableBuffer") -> int:
        count: int = super().readinto(buffer)
        self._left -= count
        if count and self._left > 0:
            arm(self._timeout_s)
        return count
