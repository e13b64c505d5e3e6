"""Pictures opened and cut into tiles, here or in a process of its own that a bad one can't outlive.

No torch: that process would load it too.
"""

import io
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from threading import Lock
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from argus_cli.errors import ImageError
from argus_cli.media.images import ImageSource, day_taken, name_of, open_image, read_stream
from argus_cli.schema import TileGrid
from argus_cli.smolvlm.config import PreprocessConfig
from argus_cli.smolvlm.tiling import cut_tiles, plan_tiles
from argus_cli.workers import Worker, WorkerLost, WorkersUnavailable, memory_for, within

logger = getLogger(__name__)


@dataclass(frozen=True)
class Look:
    """How to look at a picture; ``dated``: whether it matters when it was taken."""

    preprocess: PreprocessConfig
    tiles: str | int
    max_pixels: int | None
    dated: bool


@dataclass(frozen=True, eq=False)
class CutPicture:
    """A picture as the tower wants it, and what there is to say of it."""

    size: tuple[int, int]  # width and height, upright
    grid: TileGrid
    tiles: NDArray[np.uint8]  # [N, T, T, 3]
    taken: str  # the day as YYYY-MM-DD, "" where unknown or not asked for
    laps: dict[str, float]  # seconds of decode and preprocess


ReadPicture = Callable[[ImageSource, Look], CutPicture]


def read_picture(image: ImageSource, look: Look) -> CutPicture:
    """Open, plan and cut, here and now. Raises ImageError."""
    start = time.perf_counter()
    picture = open_image(image, max_pixels=look.max_pixels)
    taken = day_taken(image) if look.dated else ""
    decoded = time.perf_counter()
    grid = plan_tiles(picture.size, look.preprocess, look.tiles)
    tiles = cut_tiles(picture, grid)
    laps = {"decode": decoded - start, "preprocess": time.perf_counter() - decoded}
    return CutPicture(picture.size, grid, tiles, taken, laps)


class PictureReader:
    """``read_picture`` in a worker, which is replaced when a picture has been its end.

    What takes longer than ``timeout_s`` seconds is an ImageError, as is what crashes a decoder.
    Without a timeout (None or 0), and where no worker can be started, pictures are read here: all
    of them if it is the first that can't. Of the readers that share a lock ``warns`` one says so,
    once. For one thread, but ``close`` may come from any.
    """

    def __init__(
        self, timeout_s: float | None, max_pixels: int | None, warns: "Lock | None" = None
    ) -> None:
        self._timeout_s, self._memory_bytes = timeout_s or 0.0, memory_for(max_pixels)
        self._worker: Worker | None = None
        self._lock, self._is_closed, self._is_alone = Lock(), False, not timeout_s
        self._warns = warns or Lock()

    def __call__(self, image: ImageSource, look: Look) -> CutPicture:
        if hasattr(image, "read"):
            image = _read(cast(BinaryIO, image))
        try:
            worker = self._running()
            if worker is None:
                return read_picture(image, look)
            return worker.call(read_picture, _portable(image, self._timeout_s), look)
        except WorkerLost as error:
            raise ImageError(f"{name_of(image)}: {error}") from error

    def close(self) -> None:
        """End what it is at. It reads nothing more."""
        with self._lock:
            self._is_closed = True
            if self._worker:
                self._worker.close()

    def _running(self) -> Worker | None:
        if self._is_closed:
            raise WorkerLost("nothing more is read")
        if self._is_alone or self._worker and self._worker.is_alive:
            return self._worker
        try:
            worker = Worker(self._timeout_s, self._memory_bytes)
        except WorkersUnavailable as error:
            self._is_alone = self._worker is None  # where one has run, the next may run again
            if self._warns.acquire(blocking=False):  # and keeps it
                logger.warning("pictures are read without a time limit: %s", error)
            return None
        with self._lock:
            if self._worker:
                self._worker.close()  # its pipes: it may have ended while it was idle
            self._worker = worker
            if self._is_closed:
                worker.close()
        return worker


class _Blob(io.BytesIO):
    """Bytes that know what messages call them."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name


def _portable(image: ImageSource, timeout_s: float) -> ImageSource:
    """The same for another process: its path, unless that means something else there."""
    if isinstance(image, str | os.PathLike):
        path = Path(image)
        is_ours = str(path).startswith(("/dev/", "/proc/"))  # a pipe that the shell hands to us
        if is_ours or path.is_fifo():
            return _piped(path, timeout_s)
    return image


def _piped(path: Path, timeout_s: float) -> ImageSource:
    """What comes through a named pipe, to which perhaps nobody ever writes. Raises ImageError."""
    try:
        return within(timeout_s, _read, path)
    except TimeoutError as error:
        raise ImageError(f"{path}: {error}") from None


def _read(source: Path | BinaryIO) -> _Blob:
    """All of it, and its name. Raises ImageError."""
    name = name_of(source)
    try:
        with open(source, "rb") if isinstance(source, Path) else nullcontext(source) as stream:
            return _Blob(read_stream(stream), name)
    except (OSError, ValueError) as error:
        raise ImageError(f"{name}: {getattr(error, 'strerror', None) or error}") from error
