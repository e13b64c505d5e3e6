"""The frozen records that cross layers. Pure data: no files, no tensors, no formats."""

import secrets
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class TileGrid:
    """How one picture is cut: sizes are (width, height) in pixels.

    rows = cols = 0 means that the picture is squeezed into a single tile. Otherwise it is scaled
    to ``scaled``, then to ``cut`` (whole tiles), cut row by row, and a global tile comes last.
    """

    rows: int
    cols: int
    tile: int
    scaled: tuple[int, int]
    cut: tuple[int, int]

    @property
    def tiles(self) -> int:
        """Number of tiles that go through the tower, the global one included."""
        return self.rows * self.cols + 1


@dataclass(frozen=True)
class Sampling:
    """How an answer is drawn: greedy when temperature is 0."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def seeded(self) -> "Sampling":
        """The same, with a seed picked where chance needs one, so that a record can repeat it."""
        if self.temperature == 0 or self.seed is not None:
            return self
        return replace(self, seed=secrets.randbits(32))


@dataclass(frozen=True)
class Timings:
    """Seconds spent in each phase of one caption."""

    decode: float
    preprocess: float
    vision: float
    prefill: float
    generate: float


@dataclass(frozen=True)
class Caption:
    """One answer about one picture, with where it comes from."""

    path: str
    caption: str
    width: int
    height: int
    tiles: int
    grid: tuple[int, int]
    image_tokens: int
    prompt_tokens: int
    new_tokens: int
    finish_reason: str  # stop | length | repetition
    confidence: float  # mean log-probability of the answer's tokens, or calibrated: of being right
    model: str
    revision: str
    dtype: str
    device: str
    style: str  # caption | short | detailed | alt | tags, empty for a prompt of the user's own
    prompt: str
    seed: int | None
    seconds: Timings = field(compare=False)
    bytes: int | None = None  # of the file, when it was captioned; None for what is no file
    mtime_ns: int | None = None


@dataclass(frozen=True)
class Failure:
    """One input that gave no answer, and why."""

    path: str
    type: str
    message: str
    bytes: int | None = None
    mtime_ns: int | None = None


@dataclass(frozen=True)
class Frame:
    """One frame of a film: seconds on the film's own clock, and its number if that is known."""

    time: float
    index: int | None


@dataclass(frozen=True)
class Segment:
    """What a film shows from ``start`` to ``end``, in seconds on its own clock."""

    start: float
    end: float
    caption: str
    confidence: float

    def __str__(self) -> str:
        return f"[{stamp(self.start)}-{stamp(self.end)}] {self.caption}"


def stamp(seconds: float) -> str:
    """mm:ss, or h:mm:ss from an hour on."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


@dataclass(frozen=True)
class VideoTimings:
    """Seconds spent in each phase of one film."""

    decode: float
    vision: float
    generate: float


@dataclass(frozen=True)
class VideoCaption:
    """A film's timeline, with where it comes from."""

    path: str
    duration: float
    width: int
    height: int
    frames: tuple[Frame, ...]
    frames_reused: int  # looked like the one before and cost the tower nothing
    segments: tuple[Segment, ...]
    summary: str | None
    model: str
    revision: str
    dtype: str
    device: str
    prompt: str
    seed: int | None
    seconds: VideoTimings = field(compare=False)
