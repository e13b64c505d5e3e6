"""One decoded frame of a film, and its pixels when they are asked for: upright, 8 bits, RGB.

Knows nothing of files, nor of where the frame's time comes from.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import cos, radians, sin
from struct import unpack
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from argus_cli.media.images import open_image

if TYPE_CHECKING:
    from av import VideoFrame

BT709, UNSPECIFIED = 1, 2  # AVColorSpace
ODDEST_ASPECT = 8  # of a pixel; beyond that the header is wrong


class Shot(Protocol):
    """One frame of a film."""

    @property
    def time(self) -> float:
        """When it appears: seconds on the film's clock, to the microsecond."""

    @property
    def index(self) -> int | None:
        """Its number among the frames, None once the reel has jumped."""

    @property
    def is_key(self) -> bool:
        """Whether decoding can begin with it."""

    def picture(self) -> Image.Image:
        """Upright RGB in square pixels; transparency is laid on white."""

    def grey(self, width: int, height: int) -> NDArray[np.uint8]:
        """Squeezed into [height, width] levels of grey, not turned."""


@dataclass(frozen=True)
class FFmpegShot:
    """A frame as FFmpeg decodes it; ``aspect`` is width / height of one of its pixels."""

    time: float
    index: int | None
    frame: "VideoFrame"
    aspect: Fraction | None

    @property
    def is_key(self) -> bool:
        return self.frame.key_frame

    def picture(self) -> Image.Image:
        frame, (width, height) = self.frame, self._square()
        clear = frame.format.has_palette or any(part.is_alpha for part in frame.format.components)
        pixels = frame.to_ndarray(
            width=width,
            height=height,
            format="rgba" if clear else "rgb24",
            src_colorspace="ITU709" if self._is_bt709() else None,
        )
        image = Image.fromarray(pixels)
        image = open_image(image) if clear else image
        turn = _TURNS[_mirrors(frame)]
        return image if turn is None else image.transpose(turn)

    def grey(self, width: int, height: int) -> NDArray[np.uint8]:
        levels = self.frame.to_ndarray(
            width=width, height=height, format="gray", interpolation="AREA"
        )
        return levels.astype(np.uint8, copy=False)

    def _square(self) -> tuple[int, int]:
        """(width, height) with square pixels: the shorter side grows, so nothing is lost."""
        width, height = self.frame.width, self.frame.height
        if self.aspect and 1 < self.aspect <= ODDEST_ASPECT:
            width = round(width * self.aspect)
        elif self.aspect and 1 > self.aspect >= Fraction(1, ODDEST_ASPECT):
            height = round(height / self.aspect)
        return width, height

    def _is_bt709(self) -> bool:
        """As players see it: where nothing is said, by its size. libswscale would take BT.601."""
        frame = self.frame
        is_large = (frame.width >= 1280 or frame.height > 576) and not frame.format.is_rgb
        return frame.colorspace == BT709 or (frame.colorspace == UNSPECIFIED and is_large)


@dataclass(frozen=True)
class PillowShot:
    """A frame of an animation, as upright RGB already."""

    time: float
    index: int | None
    image: Image.Image
    is_key: bool = False

    def picture(self) -> Image.Image:
        return self.image

    def grey(self, width: int, height: int) -> NDArray[np.uint8]:
        return np.asarray(self.image.convert("L").resize((width, height), Image.Resampling.BOX))


def _mirrors(frame: "VideoFrame") -> tuple[bool, bool, bool]:
    """How its display matrix sets it upright: swap x and y, then mirror x, then mirror y.

    An odd angle counts as the nearest quarter turn. FFmpeg's matrix takes (x, y), y downwards, to
    (a x + c y, b x + d y): https://ffmpeg.org/doxygen/trunk/group__lavu__video__display.html
    """
    try:
        matrix = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:  # there is other side data that PyAV has no name for: only the angle is told
        angle = radians(frame.rotation)
        a, b, c, d = cos(angle), -sin(angle), sin(angle), cos(angle)
    else:
        if matrix is None:
            return False, False, False
        a, b, _, c, d, *_ = unpack("9i", cast(bytes, matrix))
    if abs(b) + abs(c) > abs(a) + abs(d):
        return True, c < 0, b < 0
    return False, a < 0, d < 0


_TURNS = {
    (False, False, False): None,
    (False, True, False): Image.Transpose.FLIP_LEFT_RIGHT,
    (False, False, True): Image.Transpose.FLIP_TOP_BOTTOM,
    (False, True, True): Image.Transpose.ROTATE_180,
    (True, False, False): Image.Transpose.TRANSPOSE,
    (True, True, False): Image.Transpose.ROTATE_270,
    (True, False, True): Image.Transpose.ROTATE_90,
    (True, True, True): Image.Transpose.TRANSVERSE,
}
