"""Pictures of every kind, whole and broken, all made here; what comes out is asserted in pixels."""

import builtins
import os
import random
import struct
import sys
import threading
import time
import warnings
import zlib
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms, ImageDraw, ImageFile

from argus_cli.errors import ImageError
from argus_cli.media.images import DEFAULT_MAX_PIXELS, open_image

ORIENTATION = 0x0112
RED, GREEN, BLUE, WHITE, BLACK = "#e01010", "#10c010", "#1010e0", (255, 255, 255), (0, 0, 0)
# What brings an upright picture into the position that the orientation names.
LAID_DOWN = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
EXACT: dict[str, dict[str, object]] = {  # or as good as that: no chroma is shared by pixels
    "JPEG": {"quality": 95, "subsampling": 0},
    "MPO": {"quality": 95, "subsampling": 0},
    "WEBP": {"lossless": True, "exact": True},
    "AVIF": {"quality": 95, "subsampling": "4:4:4"},
}
Image.init()  # saving registers more formats of Pillow; better now than in the middle of a test
KINDS = ("JPEG", "MPO", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "PPM", "HEIF")


@pytest.fixture(autouse=True)
def nothing_global_changes() -> Iterator[None]:
    """Pillow's switches and formats belong to the host program."""
    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, set(Image.OPEN)
    yield
    assert (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, set(Image.OPEN)) == before


def read(source: object, **options: int | None) -> Image.Image:
    """open_image, with the promises that hold for every call: RGB, bare, and not a warning."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        filters = list(warnings.filters)
        try:
            picture = open_image(source, **options)  # type: ignore[arg-type]
        finally:
            assert not seen, [str(warning.message) for warning in seen]
            assert list(warnings.filters) == filters
    assert (picture.mode, picture.info) == ("RGB", {})
    return picture


def refusal(source: object, **options: int | None) -> str:
    """The one line that says why not."""
    with pytest.raises(ImageError) as caught:
        read(source, **options)
    message = str(caught.value)
    assert message.splitlines() == [message]
    return message


def scene(size: tuple[int, int] = (64, 48)) -> Image.Image:
    """Red on top, blue below, a green corner top left: no two orientations look alike.

    Every edge lies on a multiple of 16, so that lossy formats blur none.
    """
    width, height = size
    picture = Image.new("RGB", size, BLUE)
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 0, width, height // 3 - 1), RED)
    draw.rectangle((0, 0, width // 4 - 1, height // 3 - 1), GREEN)
    return picture


def encoded(picture: Image.Image, kind: str, **options: object) -> bytes:
    if kind == "HEIF":
        heif = pytest.importorskip("pillow_heif")
        buffer = BytesIO()
        heif.from_pillow(picture).save(buffer, quality=-1, **options)
        return buffer.getvalue()
    if kind == "MPO":
        options |= {"save_all": True, "append_images": [picture.transpose(Image.Transpose(1))]}
    buffer = BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


@cache
def sample(kind: str) -> bytes:
    return encoded(scene(), kind, **EXACT.get(kind, {}))


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[ORIENTATION] = orientation
    return tags


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(size: tuple[int, int], depth: int, colour: int, row: bytes, *extra: bytes) -> bytes:
    """A hand-made PNG whose rows are all ``row``."""
    header = struct.pack(">IIBBBBB", *size, depth, colour, 0, 0, 0)
    pixels = zlib.compress((b"\0" + row) * min(size[1], 100))
    chunks = chunk(b"IHDR", header), *extra, chunk(b"IDAT", pixels), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def pixels(picture: Image.Image) -> list[tuple[int, ...]]:
    data = picture.tobytes()
    return list(zip(data[::3], data[1::3], data[2::3], strict=True))


def assert_same(picture: Image.Image, expected: Image.Image, tolerance: int = 0) -> None:
    assert picture.size == expected.size
    worst = max(abs(a - b) for a, b in zip(picture.tobytes(), expected.tobytes(), strict=True))
    assert worst <= tolerance


# --- one door ---


@pytest.mark.parametrize("kind", KINDS)
def test_a_path_bytes_and_a_stream_give_the_same_picture(kind: str, tmp_path: Path) -> None:
    data = sample(kind)
    file = tmp_path / "picture"
    file.write_bytes(data)
    picture = read(file)
    assert_same(picture, scene(), 0 if kind in ("PNG", "GIF", "BMP", "TIFF", "PPM") else 4)
    with file.open("rb") as stream:
        others = [read(str(file)), read(data), read(BytesIO(data)), read(stream)]
    assert all(other.tobytes() == picture.tobytes() for other in others)


def test_a_named_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(sample("PNG"),))
    writer.start()
    assert_same(read(pipe), scene())
    writer.join()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", [".jpg", ".heic", ".txt", ".eps"])
def test_the_name_does_not_matter(kind: str, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"picture{suffix}"
    file.write_bytes(sample(kind))
    assert read(file).tobytes() == read(sample(kind)).tobytes()


def test_formats_that_run_programs_are_not_tried() -> None:
    for data in (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"8BPS\0\1", b"%PDF-1.4\n"):
        assert "not a picture" in refusal(data)


@pytest.mark.parametrize("mode", ["RGB", "P", "RGBA", "F", "La"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_pil_image_is_neither_changed_nor_shared(mode: str, orientation: int) -> None:
    original = noisy(mode)
    original.info = {"note": "mine", "exif": exif(orientation).tobytes()}
    before = original.tobytes(), dict(original.info)
    picture = read(original)
    assert (original.tobytes(), original.info) == before
    kept = picture.copy()
    original.paste(0, (0, 0, *original.size))
    assert_same(picture, kept)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF", "MPO"])
def test_the_first_frame_is_taken(kind: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in (GREEN, RED, BLUE)]
    data = BytesIO()
    frames[0].save(data, kind, save_all=True, append_images=frames[1:])
    assert Image.open(data).n_frames == 3
    assert_same(read(data.getvalue()), frames[0], 4)


# --- upright ---


@pytest.mark.parametrize("orientation", LAID_DOWN)
@pytest.mark.parametrize("kind", ["JPEG", "MPO", "PNG", "WEBP", "AVIF", "TIFF", "HEIF"])
def test_orientation(kind: str, orientation: int) -> None:
    turn = LAID_DOWN[orientation]
    raw = scene().transpose(turn) if turn is not None else scene()
    options: dict[str, object] = {"exif": exif(orientation)}
    if kind == "HEIF":
        options = {"exif": exif(orientation).tobytes()}
    data = encoded(raw, kind, **options, **EXACT.get(kind, {}))
    picture = read(data)
    assert_same(picture, scene(), 0 if kind in ("PNG", "WEBP", "TIFF") else 4)
    assert_same(read(picture), picture)
    if kind != "HEIF":
        assert_same(read(Image.open(BytesIO(data))), picture)


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "jpeg", "packbits", "tiff_deflate"])
@pytest.mark.parametrize(("pages", "big"), [(1, False), (2, False), (1, True)])
def test_orientation_of_every_kind_of_tiff(
    compression: str, pages: int, big: bool, tmp_path: Path
) -> None:
    raw = scene((64, 48)).transpose(Image.Transpose.ROTATE_90)
    file = tmp_path / "scan.tif"
    more = {"save_all": True, "append_images": [raw] * (pages - 1)}
    raw.save(file, compression=compression, tiffinfo={ORIENTATION: 6}, big_tiff=big, **more)
    assert_same(read(file), scene((64, 48)), 4 if compression == "jpeg" else 0)
    assert_same(read(file.read_bytes()), read(file))


def test_exif_behind_the_pixels_of_a_png() -> None:
    data = encoded(scene().transpose(Image.Transpose.ROTATE_180), "PNG")
    tags = exif(3).tobytes()[6:]
    assert_same(read(data[:-12] + chunk(b"eXIf", tags) + data[-12:]), scene())


@pytest.mark.parametrize(
    "tags", [b"", b"\0", b"no TIFF at all", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff"]
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_broken_exif_is_ignored(kind: str, tags: bytes) -> None:
    data = encoded(scene(), kind, exif=b"Exif\0\0" + tags, **EXACT.get(kind, {}))
    assert_same(read(data), scene(), 4 if kind == "JPEG" else 0)


@pytest.mark.parametrize("cut", range(8, 40, 3))
def test_truncated_exif_is_ignored(cut: int) -> None:
    tags = exif(1)
    tags[0x010E] = "a description of some length"
    data = encoded(scene(), "JPEG", exif=tags.tobytes()[:cut])
    assert_same(read(data), read(encoded(scene(), "JPEG")))


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_is_ignored(value: int) -> None:
    assert_same(read(encoded(scene(), "PNG", exif=exif(value))), scene())


# --- modes ---


def over_white(picture: Image.Image) -> Image.Image:
    """The definition that compositing has to meet."""
    white = Image.new("RGBA", picture.size, "white")
    return Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB")


def noisy(mode: str, size: tuple[int, int] = (32, 24)) -> Image.Image:
    length = len(Image.new(mode, size).tobytes())
    return Image.frombytes(mode, size, random.Random(mode).randbytes(length))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "AVIF", None])
def test_transparency_is_laid_on_white(kind: str | None, mode: str) -> None:
    picture = noisy(mode)
    if kind:
        picture = Image.open(BytesIO(encoded(picture, kind, **EXACT.get(kind, {}))))
    assert_same(read(picture), over_white(picture))


def test_a_logo_on_nothing_gets_a_white_ground() -> None:
    logo = noisy("RGBA")
    logo.putalpha(0)
    logo.paste((200, 0, 0, 255), (8, 8, 16, 16))
    picture = read(encoded(logo, "PNG"))
    assert picture.getpixel((12, 12)) == (200, 0, 0)
    assert picture.getpixel((0, 0)) == picture.getpixel((31, 23)) == WHITE


@pytest.mark.parametrize("key", [7, b"\x00\x40\x80\xff"])
@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_transparent_palette(kind: str, key: int | bytes) -> None:
    picture = noisy("RGB").quantize(16)
    data = encoded(picture, kind, transparency=key if kind == "PNG" else 7)
    expected = over_white(Image.open(BytesIO(data)))
    assert WHITE in pixels(expected)
    assert_same(read(data), expected)


@pytest.mark.parametrize(("mode", "key"), [("L", 40), ("RGB", (1, 2, 3)), ("1", 255)])
def test_colour_keys(mode: str, key: int | tuple[int, int, int]) -> None:
    picture = Image.new(mode, (2, 1))
    picture.putpixel((0, 0), key)
    data = encoded(picture, "PNG", transparency=key)
    assert Image.open(BytesIO(data)).info["transparency"] == key
    assert pixels(read(data)) == [WHITE, BLACK]


def test_palette_with_alpha_and_alpha_beside_a_palette() -> None:
    picture = Image.new("P", (2, 1))
    picture.putpalette(bytes((200, 0, 0, 255, 0, 0, 9, 0)), "RGBA")
    picture.putpixel((1, 0), 1)
    assert pixels(read(picture)) == [(200, 0, 0), WHITE]
    assert_same(read(noisy("PA")), over_white(noisy("PA")))


@pytest.mark.parametrize(("mode", "colour"), [("La", (50, 128)), ("RGBa", (50, 0, 10, 128))])
def test_premultiplied_alpha(mode: str, colour: tuple[int, ...]) -> None:
    straight = Image.new(mode, (1, 1), colour).convert(mode.upper())
    assert_same(read(Image.new(mode, (1, 1), colour)), over_white(straight))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"])
def test_opaque_modes(mode: str) -> None:
    assert_same(read(noisy(mode)), noisy(mode).convert("RGB"))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK", "YCbCr", "LAB"])
def test_opaque_modes_in_tiff(mode: str) -> None:
    picture = Image.open(BytesIO(encoded(noisy(mode), "TIFF")))
    assert_same(read(encoded(noisy(mode), "TIFF")), picture.convert("RGB"))


def test_cmyk_jpegs_are_not_negatives() -> None:
    """Adobe stores them inverted, and says so in a marker that Pillow writes too."""
    data = encoded(Image.new("RGB", (16, 16), RED).convert("CMYK"), "JPEG", quality=95)
    assert b"Adobe" in data
    assert_same(read(data), Image.new("RGB", (16, 16), RED), 4)


def test_colour_profiles_are_ignored() -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("XYZ")).tobytes()
    assert_same(read(encoded(scene(), "PNG", icc_profile=profile)), scene())


# --- more than 8 bits ---

RAMP = [0, 1, 255, 256, 4660, 32768, 65279, 65535]


def grey(values: list[int]) -> list[tuple[int, int, int]]:
    return [(value,) * 3 for value in values]


def deep(mode: str, kind: str) -> bytes:
    code = {"I;16": "<H", "I;16B": ">H", "I": "=i"}[mode]
    data = b"".join(struct.pack(code, value) for value in RAMP)
    return encoded(Image.frombytes(mode, (len(RAMP), 1), data), kind)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("I;16", "PNG"), ("I;16", "TIFF"), ("I;16B", "TIFF"), ("I", "TIFF"), ("I", "PPM")],
)
def test_16_bit_grey_keeps_its_range(mode: str, kind: str) -> None:
    assert pixels(read(deep(mode, kind))) == grey([round(value / 257) for value in RAMP])
    picture = Image.open(BytesIO(deep(mode, kind)))
    assert_same(read(picture), read(deep(mode, kind)))


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I;16L"])
def test_dark_16_bit_grey_stays_dark(mode: str) -> None:
    assert pixels(read(Image.new(mode, (1, 1), 255))) == [(1, 1, 1)]


def test_16_bit_colour_keeps_its_range() -> None:
    """Pillow hands it over as 8-bit RGB, of the high bytes."""
    rgb = struct.pack(">6H", 0x1234, 0xABCD, 0xFFFF, 1, 0x8000, 0x7FFF)
    assert pixels(read(png((2, 1), 16, 2, rgb))) == [(0x12, 0xAB, 0xFF), (0, 0x80, 0x7F)]
    rgba = struct.pack(">8H", 0x1234, 0xABCD, 0xFFFF, 0xFFFF, 1, 2, 3, 0)
    assert pixels(read(png((2, 1), 16, 6, rgba))) == [(0x12, 0xAB, 0xFF), WHITE]
    grey_alpha = struct.pack(">4H", 0x1234, 0xFFFF, 1, 0)
    assert pixels(read(png((2, 1), 16, 4, grey_alpha))) == [(0x12,) * 3, WHITE]


def test_16_bit_colour_in_tiff() -> None:
    entries = [(256, 3, 1, 2), (257, 3, 1, 1), (258, 3, 3, 122), (259, 3, 1, 1), (262, 3, 1, 2)]
    entries += [(273, 4, 1, 128), (277, 3, 1, 3), (278, 3, 1, 1), (279, 4, 1, 12)]
    ifd = struct.pack("<H", 9) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    head = (b"II*\0" + struct.pack("<I", 8) + ifd).ljust(122, b"\0")
    rest = struct.pack("<3H6H", 16, 16, 16, 0x1234, 0xABCD, 0xFFFF, 1, 0x8000, 0x7FFF)
    assert pixels(read(head + rest)) == [(0x12, 0xAB, 0xFF), (0, 0x80, 0x7F)]


def test_the_colour_key_of_deep_grey_is_ignored() -> None:
    row = struct.pack(">2H", 0, 0xFFFF)
    assert pixels(read(png((2, 1), 16, 0, row, chunk(b"tRNS", b"\0\0")))) == [BLACK, WHITE]


@pytest.mark.parametrize(
    ("values", "levels"),
    [
        ([0, 0.2, 0.5, 1], [0, 51, 128, 255]),
        ([0, 51 / 255, 52 / 255, 200 / 255], [0, 51, 52, 200]),
        ([0, 1.5, 100.4, 254.6], [0, 2, 100, 255]),
        ([1000, 1100, 1200, 3000], [0, 13, 26, 255]),
        ([-1, 0, 0.5, 1], [0, 128, 191, 255]),
        ([float("nan"), 0, 0.5, 1], [0, 0, 128, 255]),
        ([0, float("nan"), 100, 200], [0, 0, 100, 200]),
        ([float("-inf"), 10, float("inf"), 300], [0, 0, 255, 255]),
        ([float("inf"), 10, 20, 300], [255, 0, 9, 255]),
        ([float("-inf"), 0, 100, 200], [0, 0, 100, 200]),
        ([float("nan")] * 4, [0] * 4),
        ([float("inf")] * 4, [255] * 4),
        ([0.0] * 4, [0] * 4),
        ([-5.0] * 4, [0] * 4),
        ([3e38, -3e38, 0, 1e38], [255, 0, 128, 170]),
    ],
)
def test_floats(values: list[float], levels: list[int]) -> None:
    picture = Image.frombytes("F", (4, 1), array("f", values).tobytes())
    assert pixels(read(picture)) == pixels(read(encoded(picture, "TIFF"))) == grey(levels)


@pytest.mark.parametrize(
    ("values", "levels"),
    [
        ([0, 1, 128, 255], [0, 1, 128, 255]),
        ([0, 255, 257, 65535], [0, 1, 1, 255]),
        ([0, 255, 257, 32768], [0, 1, 1, 128]),
        ([0, 65535, 131070, 65536], [0, 128, 255, 128]),
        ([-32768, 0, 32767, 16384], [0, 128, 255, 191]),
        ([-(2**31), 2**31 - 1, 0, 0], [0, 255, 128, 128]),
    ],
)
def test_integers(values: list[int], levels: list[int]) -> None:
    picture = Image.frombytes("I", (4, 1), array("i", values).tobytes())
    assert pixels(read(picture)) == pixels(read(encoded(picture, "TIFF"))) == grey(levels)


# --- what can't be read ---


def test_paths_that_can_not_be_opened(tmp_path: Path) -> None:
    missing = tmp_path / "nope dir" / "x y.jpg"
    assert refusal(missing) == f"{missing}: No such file or directory"
    assert refusal(str(tmp_path)) == f"{tmp_path}: Is a directory"
    assert refusal("a\0b.jpg") == "a\0b.jpg: embedded null byte"


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret.png"
    file.write_bytes(sample("PNG"))
    file.chmod(0)
    if os.access(file, os.R_OK):  # root reads everything

        def refuse(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(builtins, "open", refuse)
    assert refusal(file) == f"{file}: Permission denied"


def test_a_stream_that_breaks() -> None:
    class Broken(BytesIO):
        name = "<stdin>"

        def read(self, size: int | None = -1) -> bytes:
            raise OSError(5, "Input/output error")

    assert refusal(Broken()) == "<stdin>: Input/output error"


def test_messages_name_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "two\nlines.jpg"
    odd.write_bytes(b"")
    assert refusal(odd).endswith("two lines.jpg: the file is empty")
    assert refusal(b"") == refusal(BytesIO()) == "<bytes>: the file is empty"
    (tmp_path / "notes.jpg").write_text("<html>BMW and P3 are not pictures</html>")
    monkeypatch.setattr(sys, "stdin", (tmp_path / "notes.jpg").open())
    assert refusal(tmp_path / "notes.jpg").startswith(f"{tmp_path}/notes.jpg: not a picture (JPEG")
    with sys.stdin as stdin:
        assert refusal(stdin.buffer).startswith(f"{tmp_path}/notes.jpg: not a picture")
    assert refusal(Image.new("RGB", (0, 5))) == "<image>: 0x5 pixels: nothing to see"


@pytest.mark.parametrize("text", [b"BMW 320d", b"P3rhaps", b"II. Akt", b"GIF", b"\xff\xd8"])
def test_text_that_begins_like_a_picture(text: bytes) -> None:
    assert "not a picture" in refusal(text.ljust(100))


def test_heic_without_its_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    line = "<bytes>: HEIC pictures need: pip install 'argus-vlm[heif]'"
    assert refusal(sample("HEIF")) == line
    for brands in (b"heic....mif1heic", b"mif1....mif1", b"hevc....", b"XXXX\n\n\n\nheix"):
        assert refusal(struct.pack(">I", 8 + len(brands)) + b"ftyp" + brands) == line
    assert_same(read(sample("AVIF")), scene(), 4)


def test_a_film_is_not_a_picture() -> None:
    for brand in (b"isom\0\0\2\0isomiso2avc1mp41", b"qt  \0\0\0\0qt  "):
        assert "not a picture" in refusal(struct.pack(">I", 8 + len(brand)) + b"ftyp" + brand)


@pytest.mark.parametrize("kind", KINDS)
def test_cut_files_are_refused(kind: str) -> None:
    """Unless nothing but padding or a second picture is missing."""
    data, whole = sample(kind), read(sample(kind)).tobytes()
    if kind == "TIFF":
        data = encoded(scene(), kind, compression="tiff_lzw")
    end = len(data) if kind != "MPO" else data.index(b"\xff\xd9\xff\xd8")
    for cut in {*range(1, min(end, 4), 7), *(end * n // 16 for n in range(1, 16)), end - 1}:
        try:
            assert read(data[:cut]).tobytes() == whole, cut
            assert cut >= end - 30, cut
        except ImageError as error:
            assert str(error).startswith("<bytes>: "), cut
            assert cut < 30 or "truncated or damaged" in str(error), cut


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF"])
def test_half_a_photo_is_refused(kind: str) -> None:
    options = {"JPEG": {"progressive": True}, "TIFF": {"compression": "tiff_deflate"}}
    data = encoded(noisy("RGB", (200, 150)), kind, **options.get(kind, {}))
    assert "truncated or damaged" in refusal(data[: len(data) // 2])


def test_a_pil_image_that_fails_on_loading(tmp_path: Path) -> None:
    file = tmp_path / "half.jpg"
    file.write_bytes(sample("JPEG")[:-40])
    with Image.open(file) as image:
        assert refusal(image).startswith(f"{file}: truncated or damaged (image file is")
    image = Image.open(BytesIO(sample("PNG")))
    image.close()
    assert refusal(image).startswith("<image>: truncated or damaged (")


def test_a_picture_that_does_not_fit_into_memory() -> None:
    class Hungry(Image.Image):
        size = (30_000, 3_000)

        def load(self) -> None:
            raise MemoryError

    assert refusal(Hungry()) == "<image>: not enough memory to decode it"


def test_huge_text_in_a_png() -> None:
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"x" * 3_000_000))
    row = bytes((1, 2, 3))
    assert "truncated or damaged" in refusal(png((1, 1), 8, 2, row, text))
    text = chunk(b"tEXt", b"Comment\0" + b"x" * 3_000_000)
    assert pixels(read(png((1, 1), 8, 2, row, text))) == [(1, 2, 3)]


# --- too many pixels ---


def bomb(kind: str) -> bytes:
    """60000 x 60000 in a few bytes."""
    if kind == "PNG":
        return png((60000, 60000), 8, 2, b"\0\0\0")
    data = bytearray(encoded(Image.new("RGB", (16, 16)), kind))
    at, code = {
        "JPEG": (data.find(b"\xff\xc0") + 5, ">HH"),
        "GIF": (6, "<HH"),
        "BMP": (18, "<ii"),
        "WEBP": (24, "VP8X"),
    }[kind]
    if kind == "WEBP":
        size = (59999).to_bytes(3, "little")
        header = b"VP8X" + struct.pack("<II", 10, 0) + size * 2
        return b"RIFF" + struct.pack("<I", len(data) + 10) + b"WEBP" + header + bytes(data[12:])
    struct.pack_into(code, data, at, 60000, 60000)
    return bytes(data)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
def test_a_bomb_is_refused_by_its_header(kind: str) -> None:
    start = time.perf_counter()
    message = refusal(bomb(kind))
    assert time.perf_counter() - start < 1
    assert "60000x60000" in message or "3600000000" in message
    assert "--max-pixels" in message
    assert str(DEFAULT_MAX_PIXELS) in message


@pytest.mark.parametrize("kind", KINDS)
def test_the_limit_is_exact(kind: str) -> None:
    assert read(sample(kind), max_pixels=3072).size == (64, 48)
    assert refusal(sample(kind), max_pixels=3071) == (
        "<bytes>: 64x48 pixels exceed the limit, --max-pixels 3071"
    )
    assert "64x48" in refusal(scene(), max_pixels=3071)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [3072, None])
def test_our_limit_rules_not_pillows(
    kind: str, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the one it warns, beyond twice that it raises: neither may be seen."""
    for pillows in (10, 2000, None):
        with monkeypatch.context() as patch:
            patch.setattr(Image, "MAX_IMAGE_PIXELS", pillows)
            assert read(sample(kind), max_pixels=limit).size == (64, 48)
            assert Image.MAX_IMAGE_PIXELS == pillows


# --- many at once ---


def test_threads_do_not_disturb_each_other_or_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = encoded(scene(), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff")
    expected = {data: read(data).tobytes() for data in (broken, *map(sample, KINDS))}
    jobs = [(data, limit) for data in expected for limit in (None, 5000, 3071)] * 8
    filters = list(warnings.filters)

    def decode(job: tuple[bytes, int | None]) -> bytes | str:
        try:
            return open_image(job[0], max_pixels=job[1]).tobytes()
        except ImageError as error:
            return str(error)

    with monkeypatch.context() as patch, ThreadPoolExecutor(8) as pool:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        results = list(pool.map(decode, jobs))
        assert Image.MAX_IMAGE_PIXELS == 100
    for (data, limit), result in zip(jobs, results, strict=True):
        assert result == expected[data] if limit != 3071 else "exceed the limit" in str(result)
    assert list(warnings.filters) == filters


# --- anything at all ---


@settings(max_examples=600, deadline=None, derandomize=True, database=None)
@given(data=st.data(), kind=st.sampled_from(KINDS), trunk=st.booleans())
def test_no_damage_raises_anything_else(data: st.DataObject, kind: str, trunk: bool) -> None:
    damaged = bytearray(sample(kind))
    place = st.integers(0, len(damaged) - 1 if not trunk else min(200, len(damaged) - 1))
    for at, value in data.draw(st.lists(st.tuples(place, st.integers(0, 255)), max_size=6)):
        damaged[at] = value
    del damaged[data.draw(st.one_of(st.none(), place)) or len(damaged) :]
    try:
        read(bytes(damaged), max_pixels=100_000)
    except ImageError as error:
        assert str(error).startswith("<bytes>: ")


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.binary(max_size=200), st.sampled_from([b"", *(sample(kind)[:40] for kind in ("PNG",))]))
def test_noise_is_refused(noise: bytes, beginning: bytes) -> None:
    refusal(beginning + noise)
