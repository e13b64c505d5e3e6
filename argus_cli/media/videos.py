"""Films in: what one is, which moments of it to look at, and the frames on screen at those moments.

Knows nothing of models, windows or captions, nor of how a film is decoded (reels.py).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf, isfinite

from PIL import Image

from argus_cli.errors import VideoError
from argus_cli.media.images import File
from argus_cli.media.reels import Reel, opened
from argus_cli.media.shots import Shot
from argus_cli.schema import Frame

FilmSource = File  # a path, bytes, or a binary stream

SHORTEST_JUMP_S = 0.25  # below that, decoding on is always as cheap as seeking


@dataclass(frozen=True)
class VideoInfo:
    """What is known of a film before it is looked at; its size is that of the upright frames."""

    duration: float  # seconds until the last frame leaves the screen; may be 0 for a single one
    width: int
    height: int
    fps: float | None  # on average, None if unknown


def probe(source: FilmSource) -> VideoInfo:
    """Decodes the first frame of a film, so that it's known to be one, and finds its true end.

    The source is a path, bytes or a binary stream. A seekable stream is read from its beginning
    and can be passed again; for a pipe see reels.seekable(). Raises VideoError.
    """
    with opened(source) as reel:
        width, height = _first(reel.shots()).picture().size
        return VideoInfo(reel.duration(), width, height, reel.fps)


def plan_times(
    duration: float,
    *,
    fps: float = 1.0,
    max_frames: int = 64,
    start: float = 0.0,
    end: float | None = None,
) -> list[float]:
    """Rising times from start to end, evenly spread: at most ``max_frames`` and ``fps`` a second.

    The first is the start; the last lies a moment before the end, where the last frame is still on
    screen. A single one lies in the middle. Raises ValueError if nothing lies between start and
    end, which is no later than the film's.
    """
    if not (isfinite(duration) and duration >= 0 and fps > 0 and max_frames >= 1):
        raise ValueError(f"can't plan {max_frames} frames at {fps}/s over {duration} s")
    end = duration if end is None else min(end, duration)
    if not (0 <= start < end or start == end == duration == 0):
        raise ValueError(f"nothing lies between {start:g} s and {end:g} s of the film")
    length = end - start
    count = int(min(max_frames, length * fps + 1))
    if count == 1:
        return [start + length / 2]
    reach = length - min(0.001, length / 2)
    return [start + reach * (number / (count - 1)) for number in range(count)]


def frames(source: FilmSource, times: Iterable[float]) -> Iterator[tuple[Frame, Image.Image]]:
    """The frames on screen at the times, upright RGB: each once, in rising order of its own time.

    On screen is the last frame that isn't later; before the first frame, the first. Where it is
    cheaper than decoding on, the film is sought: the frames are the same, their index is unknown.
    """
    with opened(source) as reel:
        for shot in _on_screen(reel, sorted(times)):
            yield Frame(shot.time, shot.index), shot.picture()


def _first(shots: Iterator[Shot]) -> Shot:
    first = next(shots, None)
    if first is None:
        raise VideoError("not one frame of it decodes")
    return first


def _on_screen(reel: Reel, times: list[float]) -> Iterator[Shot]:
    """The shot of each time, unless it is the one before. Holds two: to know is to see the next."""
    shots = reel.shots()
    current = _first(shots)
    ahead: Shot | None = current
    shown, spacing, key = -inf, 0.0, current.time  # spacing of the keyframes, as far as seen
    for time in times:
        if ahead and reel.can_jump and time - ahead.time > max(spacing, SHORTEST_JUMP_S):
            near = reel.shots_near(time)
            if near is None:
                near, spacing = reel.shots(), time - ahead.time
            shots, ahead = near, _first(near)
            spacing, key = max(spacing, time - ahead.time), ahead.time
        while ahead and ahead.time <= time:
            if ahead.is_key and ahead.time > key:
                spacing, key = (spacing + ahead.time - key) / 2, ahead.time
            current, ahead = ahead, next(shots, None)
        if current.time > shown:
            yield current
            shown = current.time
