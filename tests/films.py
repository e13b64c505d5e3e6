"""Films for the tests, made with PyAV: tiny, and every frame has a grey level of its own."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import av
import numpy as np
from av.stream import Disposition
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]

WIDTH, HEIGHT = 64, 48
SOUND_RATE, SOUND_FRAME = 48000, 1024
# What encoders need so that no frame looks like its neighbour; B-frames and open GOPs where any.
FAITHFUL = {
    "libx264": {"crf": "10", "x264-params": "bframes=3:open-gop=1:scenecut=0"},
    "libx265": {"crf": "10", "x265-params": "bframes=3:open-gop=1:log-level=none"},
    "libvpx-vp9": {"crf": "10", "b": "0", "cpu-used": "8"},
    "libsvtav1": {"crf": "20", "preset": "12"},
    "mpeg4": {"qmin": "1", "qmax": "2", "bf": "2"},
    "mpeg2video": {"qmin": "1", "qmax": "2", "bf": "2"},
    "mjpeg": {"qmin": "1", "qmax": "2"},
}
PIXEL_FORMAT = {"gif": "rgb8", "apng": "rgb24", "mjpeg": "yuvj420p", "prores_ks": "yuv422p10le"}


def level(number: int) -> int:
    """The grey of the frame with that number; 60 numbers have one of their own."""
    return 30 + 3 * (number % 60)


def grain(number: int) -> Pixels:
    """A frame of its level, with some texture: a wrong reference picture would show."""
    noise = np.random.default_rng(number).integers(-10, 11, (HEIGHT, WIDTH, 1))
    return (level(number) + noise).astype(np.uint8).repeat(3, axis=2)


def plain(grey: int, width: int = WIDTH, height: int = HEIGHT) -> Pixels:
    """A frame of one grey."""
    return np.full((height, width, 3), grey, np.uint8)


def steady(count: int, rate: int = 25) -> list[float]:
    """The times of frames at a constant rate."""
    return [number / rate for number in range(count)]


def film(
    times: Iterable[float],
    kind: str = "mp4/libx264",
    pictures: Sequence[Pixels | av.VideoFrame] | None = None,
    *,
    gop: int = 12,
    pix_fmt: str | None = None,
    aspect: Fraction | None = None,
    sound_from: float | None = None,
    cover: bool = False,
    movflags: str = "",
    piped: bool = False,
    options: dict[str, str] | None = None,
    tags: dict[str, int] | None = None,
) -> bytes:
    """A film of the kind "container/codec" that shows each picture (by default grain) at its time.

    ``piped``: the container couldn't go back to note its length.
    """
    container, codec = kind.split("/")
    times = list(times)
    pictures = pictures or [grain(number) for number in range(len(times))]
    pix_fmt = pix_fmt or PIXEL_FORMAT.get(codec, "yuv420p")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "film"
        target = _Pipe() if piped else str(path)
        muxing = {"movflags": movflags} if movflags else {}
        with av.open(target, "w", format=container, options=muxing) as output:
            settings = {"g": str(gop)} | FAITHFUL.get(codec, {}) | (options or {})
            stream = output.add_stream(codec, rate=25, options=settings)
            height, width = _shape(pictures[0])
            stream.width, stream.height, stream.pix_fmt = width, height, pix_fmt
            ticks = 25 if codec.startswith("mpeg") or container == "avi" else 1000
            stream.codec_context.time_base = Fraction(1, ticks)
            for name, value in (tags or {}).items():
                setattr(stream.codec_context, name, value)
            if aspect:
                stream.codec_context.sample_aspect_ratio = aspect
            sound = output.add_stream("aac", rate=SOUND_RATE) if sound_from is not None else None
            art = _cover_stream(output) if cover else None
            for time, picture in zip(times, pictures, strict=True):
                frame = picture
                if not isinstance(frame, av.VideoFrame):
                    layout = "rgba" if frame.shape[2] == 4 else "rgb24"
                    frame = av.VideoFrame.from_ndarray(frame, layout).reformat(format=pix_fmt)
                frame.pts, frame.time_base = round(time * ticks), Fraction(1, ticks)
                output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
            if sound:
                _hum(output, sound, sound_from or 0.0, times[-1])
            if art:
                output.mux(art.encode(_cover_frame()) + art.encode(None))
        return bytes(target.written) if isinstance(target, _Pipe) else path.read_bytes()


def song(*, cover: bool = False) -> bytes:
    """An MP3, with a picture of its cover or without."""
    file = BytesIO()
    with av.open(file, "w", format="mp3") as output:
        sound = output.add_stream("libmp3lame", rate=SOUND_RATE)
        art = _cover_stream(output) if cover else None
        _hum(output, sound, 0.0, 0.3)
        if art:
            output.mux(art.encode(_cover_frame()) + art.encode(None))
    return file.getvalue()


def animation(kind: str, pictures: Sequence[Image.Image], durations_ms: list[int]) -> bytes:
    """An animated GIF or WEBP, made by Pillow."""
    file = BytesIO()
    pictures[0].save(
        file, kind, save_all=True, append_images=pictures[1:], duration=durations_ms, disposal=2,
        **({"lossless": True} if kind == "WEBP" else {}),
    )  # fmt: skip
    return file.getvalue()


def laid_down(mp4: bytes, matrix: tuple[int, int, int, int]) -> bytes:
    """The film with a display matrix (a, b, c, d), in the header of its track."""
    a, b, c, d = (value << 16 for value in matrix)
    numbers = (a, b, 0, c, d, 0, 0, 0, 1 << 30)
    at = mp4.index(b"tkhd") + 44
    packed = b"".join(number.to_bytes(4, "big", signed=True) for number in numbers)
    return mp4[:at] + packed + mp4[at + 36 :]


def damaged(content: bytes, start: float, end: float) -> bytes:
    """The same with rubbish from one fraction of its length to the other."""
    first, last = int(len(content) * start), int(len(content) * end)
    rubbish = np.random.default_rng(0).integers(0, 256, last - first, np.uint8)
    return content[:first] + rubbish.tobytes() + content[last:]


def yuv(
    pix_fmt: str, y: int, u: int, v: int, size: tuple[int, int] = (WIDTH, HEIGHT), **tags: int
) -> av.VideoFrame:
    """A frame of one colour, given as it is stored, with tags such as ``color_range``."""
    frame = av.VideoFrame(*size, pix_fmt)
    kind = np.uint16 if "10" in pix_fmt else np.uint8
    for plane, value in zip(frame.planes, (y, u, v), strict=True):
        plane.update(np.full(plane.buffer_size // kind().itemsize, value, kind).tobytes())
    for name, value in tags.items():
        setattr(frame, name, value)
    return frame


class _Pipe:
    """Something that can be written to, and no more."""

    def __init__(self) -> None:
        self.written = bytearray()

    def write(self, data: bytes) -> int:
        self.written += data
        return len(data)


def _shape(picture: Pixels | av.VideoFrame) -> tuple[int, int]:
    if isinstance(picture, av.VideoFrame):
        return picture.height, picture.width
    return picture.shape[0], picture.shape[1]


def _hum(output: av.container.OutputContainer, stream, start: float, end: float) -> None:  # type: ignore[no-untyped-def]
    layout = "s16p" if stream.codec_context.name.startswith("libmp3") else "fltp"
    size = stream.codec_context.frame_size or SOUND_FRAME
    silence = np.zeros((2, size), np.int16 if layout == "s16p" else np.float32)
    for first in range(round(start * SOUND_RATE), round(end * SOUND_RATE), size):
        frame = av.AudioFrame.from_ndarray(silence, format=layout, layout="stereo")
        frame.sample_rate, frame.pts = SOUND_RATE, first
        frame.time_base = Fraction(1, SOUND_RATE)
        output.mux(stream.encode(frame))
    output.mux(stream.encode(None))


def _cover_stream(output: av.container.OutputContainer):  # type: ignore[no-untyped-def]
    stream = output.add_stream("mjpeg", rate=25)
    stream.width, stream.height, stream.pix_fmt = 32, 32, "yuvj420p"
    stream.disposition = Disposition.attached_pic
    return stream


def _cover_frame() -> av.VideoFrame:
    return av.VideoFrame.from_ndarray(plain(200, 32, 32), "rgb24").reformat(format="yuvj420p")
