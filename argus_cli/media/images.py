"""Pictures in: anything that holds one -> upright 8-bit RGB. Knows nothing of models or tiles.

Formats are told by content, never by name. Of an animation or a document the first frame counts.
Colour profiles are ignored, as the reference preprocessing of the models does.
"""

import errno
import os
import re
import threading
import warnings
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import date
from io import BytesIO
from math import isfinite
from typing import BinaryIO, cast

from PIL import ExifTags, Image
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import jpeg_factory
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import STRIPOFFSETS, TILEOFFSETS, TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from argus_cli.errors import ImageError

File = str | os.PathLike[str] | bytes | BinaryIO
ImageSource = File | Image.Image

DEFAULT_MAX_PIXELS = 178_956_970  # where Pillow's own default refuses; 0.7 GB once decoded
MAX_STREAM_BYTES = 2**30  # of a picture that comes through a pipe
MAX_PIECES = 2**18  # strips or tiles of a TIFF: one a row, or of 26x26 pixels, at the pixel limit
MAX_HEADER_BYTES = 2**16  # of a PPM, with its comments


def open_image(source: ImageSource, *, max_pixels: int | None = DEFAULT_MAX_PIXELS) -> Image.Image:
    """The picture in a file, in bytes, in a binary stream or in a PIL image: RGB and upright.

    Transparency is laid on white. A PIL image is turned by its EXIF orientation, like the file it
    may come from; the result has an empty ``info``, and passing it again changes nothing. What
    can't be decoded, or is larger than ``max_pixels`` (None lifts the limit), is an ImageError.
    """
    with _border(name_of(source)), _pillow.borrowed(max_pixels):
        if isinstance(source, Image.Image):
            picture = _upright_rgb(source, max_pixels)
        else:
            with _stream(source) as stream:
                picture = _upright_rgb(_recognised(stream), max_pixels)
        if picture is source:
            picture = picture.copy()
        picture.info.clear()
        return picture


def exif_of(source: str | bytes | Image.Image) -> Image.Exif:
    """What a picture says of itself; no pixel is decoded. Raises whatever a damaged one causes."""
    with ExitStack() as stack:
        stack.enter_context(_pillow.borrowed(DEFAULT_MAX_PIXELS))
        if not isinstance(source, Image.Image):
            source = _recognised(stack.enter_context(_stream(source)))
        exif = source.getexif()
        exif.get_ifd(ExifTags.IFD.Exif)  # or a damaged one would warn when it is asked for
        return exif


def day_taken(source: ImageSource) -> str:
    """The day by a picture's EXIF as YYYY-MM-DD; "" where it has none, or can't be read twice."""
    with suppress(Exception):  # no EXIF, a broken one, a day that no calendar has
        if isinstance(source, str | os.PathLike):
            source = os.fspath(source) if os.path.isfile(source) else b""
        elif isinstance(source, BytesIO):
            source = source.getvalue()
        if isinstance(source, str | bytes | Image.Image):
            moment: str = exif_of(source).get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal]
            return date.fromisoformat(moment[:10].replace(":", "-")).isoformat()
    return ""


def name_of(source: ImageSource) -> str:
    """What messages call it: its path, or something like <stdin>."""
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    name = getattr(source, "filename", None) or getattr(source, "name", None)
    anonymous = "<image>" if isinstance(source, Image.Image) else "<bytes>"
    return name if isinstance(name, str) else anonymous


@contextmanager
def _border(name: str) -> Iterator[None]:
    """Where any failure turns into an ImageError of one line."""
    try:
        yield
    except Exception as error:  # decoders throw OSError, SyntaxError, struct.error, MemoryError...
        match error:
            case ImageError():
                reason = str(error)
            case Image.DecompressionBombError():  # of a decoder that allocates on opening (WebP)
                reason = f"too many pixels, --max-pixels raises the limit ({error})"
            case MemoryError():
                reason = "not enough memory to decode it"
            case _:
                reason = f"truncated or damaged ({error or type(error).__name__})"
        raise ImageError(" ".join(f"{name}: {reason}".splitlines())) from error


class _PillowSwitches:
    """Pillow's bomb limit and Python's warning filters, borrowed while any picture is decoded.

    Both are process-wide, belong to the host program and are consulted by decoders at any moment:
    so the first thread in saves them and the last one out restores them. The limit is only ever
    raised, for the picture that asks for most; each is measured against its own by us.
    """

    def __init__(self) -> None:
        self._lock, self._users, self._restore = threading.Lock(), 0, ExitStack()

    @contextmanager
    def borrowed(self, max_pixels: int | None) -> Iterator[None]:
        with self._lock:
            if self._users == 0:
                self._restore.callback(setattr, Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
                self._restore.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", module=r"(PIL|pillow_heif)\b")
            self._users += 1
            if max_pixels is None:
                Image.MAX_IMAGE_PIXELS = None
            elif Image.MAX_IMAGE_PIXELS is not None:  # Pillow refuses at twice this number
                Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, (max_pixels + 1) // 2)
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._restore.close()


_pillow = _PillowSwitches()


def _stream(source: File) -> BinaryIO:
    """The source as something seekable; a file is not read before it looks like a picture."""
    if isinstance(source, bytes):
        return BytesIO(source)
    try:
        if not isinstance(source, str | os.PathLike):
            return BytesIO(read_stream(source))
        file = open(source, "rb")
        if file.seekable():
            return file
        with file:  # a named pipe, <(...) of the shell
            return BytesIO(read_stream(file))
    except (OSError, ValueError) as error:
        raise ImageError(getattr(error, "strerror", None) or str(error)) from error


def read_stream(stream: BinaryIO) -> bytes:
    """What is left of it. Raises OSError also for more than any picture has, such as /dev/zero."""
    content = stream.read(MAX_STREAM_BYTES + 1)
    if len(content) > MAX_STREAM_BYTES:
        raise OSError(errno.EFBIG, f"more than {MAX_STREAM_BYTES >> 20} MB and no end")
    return content


def _heif(stream: BinaryIO) -> ImageFile:
    try:
        from pillow_heif import HeifImageFile  # registering it would change Pillow for the host
    except ImportError as error:
        raise ImageError("HEIC pictures need: pip install 'argus-vlm[heif]'") from error
    return cast(Callable[[BinaryIO], ImageFile], HeifImageFile)(stream)


class _Tiff(TiffImageFile):
    """Refused before Pillow makes a list of its strips or tiles, 330 bytes for each of 4."""

    def _setup(self) -> None:
        offsets = (self.tag_v2.get(tag, ()) for tag in (STRIPOFFSETS, TILEOFFSETS))
        if max(map(len, offsets)) > MAX_PIECES:
            raise ImageError(f"in more than {MAX_PIECES} strips or tiles")
        super()._setup()


def _ppm(stream: BinaryIO) -> ImageFile:
    """Only with a header near the beginning: Pillow reads comments byte by byte, without an end."""
    head = re.sub(rb"#[^\r\n]*", b"", stream.read(MAX_HEADER_BYTES))
    stream.seek(0)
    if len(head.split(None, 4)) < (3 if head[1:2] in b"14" else 4):
        raise ImageError("truncated or damaged (no size in its header)")
    return PpmImageFile(stream)


def _bmp(stream: BinaryIO) -> ImageFile:
    """Run-length coded only as large as runs of 255 make it: Pillow adds the rest bit by bit."""
    picture = BmpImageFile(stream)
    coded = stream.seek(0, os.SEEK_END)
    if picture.tile[0].codec_name == "bmp_rle" and picture.width * picture.height > 255 * coded:
        raise ImageError("truncated or damaged (more pixels than its runs can fill)")
    return picture


# How a file begins -> what decodes it. An ISO file (AVIF, HEIC) lists its brands in its first box.
_FORMATS: dict[bytes, Callable[[BinaryIO], ImageFile]] = {
    rb"\xff\xd8\xff": jpeg_factory,
    rb"\x89PNG\r\n\x1a\n": PngImageFile,
    rb"RIFF.{4}WEBP": WebPImageFile,
    rb"GIF8[79]a": GifImageFile,
    rb"II[*+]\0|MM\0[*+]": _Tiff,
    rb"BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0": _bmp,
    rb"P[1-6f]\s": _ppm,
    rb".{4}ftyp(.{4}){0,12}?avi[fs]": AvifImageFile,
    rb".{4}ftyp(.{4}){0,12}?(he[iv][cmsx]|m[is]f1)": _heif,
}


def _recognised(stream: BinaryIO) -> ImageFile:
    """The picture with its header read and no pixel decoded."""
    head = stream.read(64)
    stream.seek(0)
    if not head:
        raise ImageError("the file is empty")
    for beginning, decoder in _FORMATS.items():
        if re.match(beginning, head, re.DOTALL):
            return decoder(stream)
    raise ImageError("not a picture (JPEG, PNG, WebP, AVIF, HEIC, GIF, TIFF, BMP, PPM)")


def _upright_rgb(image: Image.Image, max_pixels: int | None) -> Image.Image:
    width, height = image.size
    if not width * height:
        raise ImageError(f"{width}x{height} pixels: nothing to see")
    if max_pixels is not None and width * height > max_pixels:
        raise ImageError(f"{width}x{height} pixels exceed the limit, --max-pixels {max_pixels}")
    image.load()
    picture = _rgb(image)
    turn = _turn(image)
    return picture if turn is None else picture.transpose(turn)


def _turn(image: Image.Image) -> Image.Transpose | None:
    """What sets a loaded picture upright. TIFF and HEIC turned themselves on loading."""
    try:
        return _TURNS.get(image.getexif()[ExifTags.Base.Orientation])
    except Exception:  # no EXIF, or a broken one: it says nothing about the pixels
        return None


_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _rgb(image: Image.Image) -> Image.Image:
    """Any mode of Pillow to RGB; the very image if it is plain RGB already."""
    if image.mode in _DEEP:
        image = _eight_bit(image, _DEEP[image.mode])
    elif image.mode == "La":  # the one premultiplied mode that Pillow doesn't take to RGBA
        image = image.convert("LA")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == "RGB" else image.convert("RGB")


# Grey of more than 8 bits, which Pillow would clip -> values that may stand for white.
_DEEP = {"F": (1, 255), "I": (255, 65535)} | dict.fromkeys(
    ("I;16", "I;16B", "I;16L", "I;16N"), (65535,)
)


def _eight_bit(image: Image.Image, whites: tuple[int, ...]) -> Image.Image:
    """Deep grey to L: from black = 0 to the first white that no value exceeds.

    Without one, or with negative values, min..max is stretched. Infinities saturate, NaN is black
    and a colour key is dropped.
    """
    if image.mode not in ("I", "F"):
        image = image.convert("I")
    low, high = cast(tuple[float, float], image.getextrema())
    if not (isfinite(low) and isfinite(high)):
        values = array("f", image.tobytes())
        low = min(filter(isfinite, values), default=0)
        high = max(filter(isfinite, values), default=0)
    if low >= 0:
        low, high = next(((0, white) for white in whites if high <= white), (low, high))
    scale = 255 / (high - low or 1)
    grey = image.point(lambda value: value * scale + (0.5 - low * scale)).convert("L")
    grey.info.pop("transparency", None)
    return grey
