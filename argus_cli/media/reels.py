"""Films opened, from whatever holds one: see Reel. Knows nothing of which frames are wanted."""

import errno
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from io import BytesIO
from shutil import disk_usage
from tempfile import TemporaryFile, gettempdir
from typing import BinaryIO, Protocol, cast

from PIL.WebPImagePlugin import WebPImageFile

from argus_cli.errors import VideoError
from argus_cli.media.ffmpeg import FFmpegReel
from argus_cli.media.images import File, name_of, open_image
from argus_cli.media.shots import PillowShot, Shot


class Reel(Protocol):
    """An open film. One thing is asked of it at a time: each call ends what ran before."""

    @property
    def fps(self) -> float | None:
        """Frames a second on average, None if unknown."""

    @property
    def can_jump(self) -> bool:
        """Whether it is worth asking for ``shots_near``."""

    def shots(self) -> Iterator[Shot]:
        """All of it from the beginning, in strictly rising time."""

    def shots_near(self, time: float) -> Iterator[Shot] | None:
        """The same from some frame at or before the time on; None where there is no such way."""

    def duration(self) -> float:
        """When the last frame leaves the screen."""


@contextmanager
def opened(source: File) -> Iterator[Reel]:
    """The film in a file, in bytes or in a binary stream. What fails meanwhile is a VideoError."""
    name = name_of(source)
    try:
        with seekable(source) as file:
            file.seek(0)
            head = file.read(12)
            if not head:
                raise VideoError("the file is empty")
            if head[:4] + head[8:] == b"RIFFWEBP":
                yield _Animation(file)
            else:
                with closing(FFmpegReel(file, name)) as reel:
                    yield reel
    except Exception as error:  # of FFmpeg, of the file system, of Pillow
        match error:
            case VideoError():
                reason = str(error)
            case MemoryError():
                reason = "not enough memory to decode it"
            case _:
                reason = getattr(error, "strerror", None) or f"damaged ({error!r})"
        raise VideoError(" ".join(f"{name}: {reason}".splitlines())) from error


@contextmanager
def seekable(source: File) -> Iterator[BinaryIO]:
    """The source as a stream that can be read from its beginning as often as one likes.

    What comes through a pipe is laid down in a temporary file. It comes once: whoever needs it
    twice holds on to this. Raises OSError.
    """
    if isinstance(source, bytes):
        yield BytesIO(source)
    elif isinstance(source, str | os.PathLike):
        with open(source, "rb") as file, seekable(file) as stream:
            yield stream
    elif source.seekable():
        yield source
    else:
        with laid_down(source) as spool:
            yield spool


@contextmanager
def laid_down(source: BinaryIO) -> Iterator[BinaryIO]:
    """A copy of what is left of the source in a temporary file, by the same name. Raises OSError.

    Of what has no end it takes no more than half of what is free there.
    """
    with _temporary_file() as spool:
        folder = gettempdir()
        room = disk_usage(folder).free // 2
        while piece := source.read(2**18):
            room -= len(piece)
            try:
                if room < 0:
                    raise OSError(errno.EFBIG, "too much")
                spool.write(piece)
                spool.flush()
            except OSError as error:
                reason = f"{error.strerror} for {folder}, save it as a file first or set TMPDIR"
                raise OSError(error.errno, reason) from None
        spool.raw.name = name_of(source)  # type: ignore[attr-defined]  # of FileIO
        yield spool


def _temporary_file() -> BinaryIO:
    """Without a name on the disk: nothing outlives a kill -9."""
    try:
        return cast(BinaryIO, TemporaryFile())
    except OSError as error:
        reason = "no folder for temporary files can be written, set TMPDIR to one"
        raise OSError(error.errno, reason) from None


class _Animation:
    """An animated WebP, which Pillow decodes and FFmpeg doesn't."""

    fps = None
    can_jump = False

    def __init__(self, file: BinaryIO) -> None:
        file.seek(0)
        self._image = WebPImageFile(file)

    def shots(self) -> Iterator[Shot]:
        for index, (start, _) in enumerate(self._spans()):
            yield PillowShot(start, index, open_image(self._image))

    def shots_near(self, time: float) -> Iterator[Shot] | None:
        return None

    def duration(self) -> float:
        return max(end for _, end in self._spans())

    def _spans(self) -> Iterator[tuple[float, float]]:
        """From when to when each frame is shown; it is then the one loaded."""
        end_ms = 0
        for number in range(self._image.n_frames):
            self._image.seek(number)
            self._image.load()
            start_ms, end_ms = end_ms, end_ms + (self._image.info.get("duration") or 100)
            yield start_ms / 1000, end_ms / 1000  # 100 ms where none are told, as browsers do
