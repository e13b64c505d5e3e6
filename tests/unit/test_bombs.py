"""Small files that claim or unfold to absurd amounts: each is used or refused, in little memory.

All are opened in one worker with 10 s of time and 512 MB of address space. Too many pixels are the
business of test_images.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from io import BytesIO
from pathlib import Path

import pytest
from films import film, steady
from PIL import Image

from argus_cli.errors import ImageError, VideoError
from argus_cli.media.images import MAX_PIECES, open_image
from argus_cli.media.videos import VideoInfo, probe
from argus_cli.workers import Worker

SIZE = (8, 8)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    worker = Worker(10.0, memory_bytes=2**29)
    yield worker
    worker.close()


def encoded(kind: str) -> bytes:
    buffer = BytesIO()
    Image.new("RGB", SIZE).save(buffer, kind)
    return buffer.getvalue()


@cache
def unfolding(size: int = 2**26) -> bytes:
    """Zeros, packed two hundredfold."""
    return zlib.compress(bytes(size), 1)


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    """With these behind its header."""
    whole, behind = encoded("PNG"), 33
    extra = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return whole[:behind] + b"".join(extra) + whole[behind:]


def tiff(*changes: tuple[int, int, int, int], following: int = 0, room: int = 1000) -> bytes:
    """Grey and raw, its entries (tag, type, count, value or where) as a changed directory has them.

    It lies at 8, the pixels at 200.
    """
    entries = {
        256: (3, 1, 8), 257: (3, 1, 8), 258: (3, 1, 8), 259: (3, 1, 1), 262: (3, 1, 1),
        273: (4, 1, 200), 277: (3, 1, 1), 278: (3, 1, 8), 279: (4, 1, 64),
    } | {tag: entry for tag, *entry in changes}  # fmt: skip
    rows = b"".join(struct.pack("<HHII", tag, *entries[tag]) for tag in sorted(entries))
    head = b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + rows
    return head + struct.pack("<I", following) + bytes(room)


def exif(directory: bytes) -> bytes:
    """A JPEG with this TIFF as its EXIF."""
    whole = encoded("JPEG")
    length = struct.pack(">H", len(directory) + 8)
    return whole[:2] + b"\xff\xe1" + length + b"Exif\0\0" + directory + whole[2:]


def gif(frames: int) -> bytes:
    whole = encoded("GIF")
    frame = whole[whole.index(b"\x2c") : -1]
    return whole[:-1] + frame * frames + b";"


def webp(frames: int) -> bytes:
    buffer = BytesIO()
    colours = [Image.new("RGB", SIZE, colour) for colour in ("red", "blue")]
    colours[0].save(buffer, "WEBP", save_all=True, append_images=colours[1:])
    body = buffer.getvalue()[12:]
    last = body[body.rindex(b"ANMF") :]
    body += last * frames
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


MANY = MAX_PIECES + 1


def bmp(width: int, height: int, runs: bytes) -> bytes:
    """Run-length coded, of one colour, red."""
    palette, begin = b"\0\0\xff\0" * 2, 14 + 40 + 8
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(runs), 0, 0, 2, 0)
    return b"BM" + struct.pack("<IHHI", begin + len(runs), 0, 0, begin) + info + palette + runs


PICTURES: dict[str, Callable[[], bytes]] = {
    "PNG: text": lambda: png((b"zTXt", b"k\0\0" + unfolding())),
    "PNG: XMP": lambda: png((b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + unfolding())),
    "PNG: profile": lambda: png((b"iCCP", b"k\0\0" + unfolding())),
    "PNG: much text": lambda: png(*[(b"zTXt", b"k\0\0" + unfolding(10**6))] * 1000),
    "PNG: many texts": lambda: png(*[(b"tEXt", b"k\0v")] * 50_000),
    "PNG: pixels": lambda: png((b"IDAT", unfolding())),
    "PNG: frames claimed": lambda: png((b"acTL", struct.pack(">II", 10**9, 0))),
    "BMP: runs": lambda: bmp(13_000, 13_000, b"\0\1"),
    "GIF: frames": lambda: gif(10_000),
    "WebP: frames": lambda: webp(10_000),
    "TIFF: its own next page": lambda: tiff(following=8),
    "TIFF: its own EXIF": lambda: tiff((34665, 4, 1, 8), (34853, 4, 1, 8), (330, 4, 1, 8)),
    "TIFF: a tag of 2 GB": lambda: tiff((700, 1, 2**31, 200)),
    "TIFF: the same MB as many tags": lambda: tiff(
        *[(tag, 1, 2**20, 200) for tag in range(40_000, 42_000)], room=2**21
    ),
    "TIFF: strips claimed": lambda: tiff((273, 4, 2**28, 200), (279, 4, 2**28, 200)),
    "TIFF: strips": lambda: tiff(
        (256, 3, 1, 1), (257, 4, 1, MANY), (278, 3, 1, 1), (273, 4, MANY, 200),
        (279, 4, MANY, 200), room=4 * MANY + 1000,
    ),
    "TIFF: samples": lambda: tiff((277, 3, 1, 65535), (258, 3, 65535, 200), room=200_000),
    "TIFF: tiles of nothing": lambda: tiff((322, 4, 1, 0), (323, 4, 1, 0), (324, 4, 1, 200)),
    "TIFF: a tile of 2^60": lambda: tiff(
        (259, 3, 1, 5), (322, 4, 1, 2**30), (323, 4, 1, 2**30), (324, 4, 1, 200), (325, 4, 1, 9)
    ),
    "EXIF: its own next": lambda: exif(tiff((34665, 4, 1, 8), (40965, 4, 1, 8), following=8)),
    "EXIF: a tag of 4 GB": lambda: exif(tiff((274, 3, 2**32 - 1, 8))),
    "PPM: comment": lambda: b"P6 #" + b"c" * 10**7,
    "PPM: number": lambda: b"P2 8 8 255\n" + b"1" * 10**7,
}  # fmt: skip


@pytest.mark.parametrize("bomb", PICTURES)
def test_a_picture(worker: Worker, bomb: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(PICTURES[bomb]())
    try:
        picture = worker.call(open_image, path)
    except ImageError as error:
        assert "not enough memory" not in str(error)
    else:
        assert picture.width == SIZE[0]


@pytest.mark.parametrize(
    ("bomb", "told"),
    [
        ("TIFF: strips", "in more than 262144 strips or tiles"),
        ("PPM: comment", "no size in its"),
        ("BMP: runs", "more pixels than its runs"),
    ],
)
def test_what_would_take_minutes_is_refused(bomb: str, told: str) -> None:
    with pytest.raises(ImageError, match=told):
        open_image(PICTURES[bomb]())


def test_as_many_strips_as_rows_are_allowed() -> None:
    buffer = BytesIO()
    Image.new("L", (1, 20_000)).save(buffer, "TIFF", tiffinfo={278: 1})
    assert open_image(buffer.getvalue()).size == (1, 20_000)


def test_runs_that_fill_a_bmp_are_allowed() -> None:
    picture = open_image(bmp(500, 2, b"\xff\1\xf5\1\0\0" * 2 + b"\0\1"))
    assert picture.size == (500, 2)
    assert picture.getcolors() == [(1000, (255, 0, 0))]


def edited(kind: str, box: bytes, at: int, layout: str, *values: int | float) -> bytes:
    """A film with other numbers so many bytes behind the name of a part of it."""
    content = film(steady(10), kind)
    where = content.index(box) + at
    return (
        content[:where] + struct.pack(layout, *values) + content[where + struct.calcsize(layout) :]
    )


def y4m(header: str) -> bytes:
    return f"YUV4MPEG2 {header} C420jpeg\n".encode() + (b"FRAME\n" + bytes(384)) * 3


FILMS: dict[str, Callable[[], bytes]] = {
    "MP4: 10^9 frames": lambda: edited("mp4/libx264", b"stts", 12, ">II", 10**9, 512),
    "MP4: 10^9 samples": lambda: edited("mp4/libx264", b"stsz", 8, ">II", 1, 10**9),
    "MP4: years long": lambda: edited("mp4/libx264", b"stts", 12, ">II", 10, 2**31 - 1),
    "MP4: no time scale": lambda: edited("mp4/libx264", b"mdhd", 16, ">I", 0),
    "MP4: another file": lambda: edited("mp4/libx264", b"url ", 4, ">I", 0),
    "MKV: 10^18 s": lambda: edited("matroska/libx264", b"\x44\x89\x88", 3, ">d", 1e18),
    "MKV: not a number of s": lambda: edited(
        "matroska/libx264", b"\x44\x89\x88", 3, ">d", float("nan")
    ),
    "AVI: 10^9 frames": lambda: edited("avi/mpeg4", b"avih", 24, "<I", 10**9),
    "AVI: 0/0 frames a second": lambda: edited("avi/mpeg4", b"strh", 28, "<II", 0, 0),
    "AVI: a frame in 68 years": lambda: edited("avi/mpeg4", b"strh", 28, "<II", 2**31 - 1, 1),
    "Y4M: 10^10 pixels": lambda: y4m("W100000 H100000 F25:1"),
    "Y4M: 10^9 frames a second": lambda: y4m("W16 H16 F1000000000:1"),
    "Y4M: 0/0 frames a second": lambda: y4m("W16 H16 F0:0"),
    "GIF: frames": lambda: gif(10_000),
    "WebP: frames": lambda: webp(2_000),
}


@pytest.mark.parametrize("bomb", FILMS)
def test_a_film(worker: Worker, bomb: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(FILMS[bomb]())
    try:
        info = worker.call(probe, path)
    except VideoError as error:
        assert "not enough memory" not in str(error)
    else:
        assert isinstance(info, VideoInfo) and 0 <= info.duration < 1e12
