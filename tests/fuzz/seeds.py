"""Valid files of every kind that argus reads, a few kB each, for the doors to begin from."""

import json
import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pillow_heif
from conftest import TINY, draw, random_model, save_checkpoint
from films import animation, film, song
from PIL import Image, TiffImagePlugin
from PIL.PngImagePlugin import PngInfo

from argus_cli.schema import Caption, Failure, Timings
from argus_cli.smolvlm.config import parse_model

SIZE = (16, 12)
CAPTION = Caption(
    path="photo.jpg", caption="A dog & a <cat> run.", width=16, height=12, tiles=1, grid=(0, 0),
    image_tokens=64, prompt_tokens=80, new_tokens=5, finish_reason="stop", confidence=-0.5,
    model="tiny", revision="abc123", dtype="float32", device="cpu", style="", prompt="?",
    seed=None, seconds=Timings(0, 0, 0, 0, 0), bytes=1, mtime_ns=2,
)  # fmt: skip
FAILURE = Failure("torn.jpg", "ImageError", "torn.jpg: truncated", 1, 2)
XMP = b"""<?xpacket begin="\xef\xbb\xbf" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
 <rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/"
   xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:Rating="5">
  <dc:description><rdf:Alt><rdf:li xml:lang="x-default">A cat</rdf:li></rdf:Alt></dc:description>
  <dc:subject><rdf:Bag><rdf:li>Anna</rdf:li></rdf:Bag></dc:subject>
 </rdf:Description></rdf:RDF></x:xmpmeta>
<?xpacket end="w"?>"""


def pictures() -> Iterator[bytes]:
    """Of each format, and of what each can hold."""
    rgb = draw(*SIZE)
    clear = rgb.copy()
    clear.putalpha(rgb.convert("L"))
    palette, grey, bits = rgb.quantize(8), rgb.convert("L"), rgb.convert("1")
    deep = Image.fromarray(np.asarray(grey, np.uint16) * 257)
    exif = Image.Exif()
    exif[0x0112] = 6
    exif.get_ifd(0x8769)[0x9003] = "2024:02:29 12:00:00"
    text = PngInfo()
    text.add_text("Comment", "a" * 40, zip=True)
    text.add_itxt("XML:com.adobe.xmp", XMP.decode())
    yield from (
        saved(rgb, "JPEG", exif=exif, comment=b"hello", icc_profile=b"\0" * 128),
        saved(rgb, "JPEG", progressive=True, restart_marker_blocks=1),
        saved(rgb.convert("CMYK"), "JPEG", keep_rgb=False),
        saved(rgb, "MPO", several=True),
        saved(rgb, "PNG", pnginfo=text, exif=exif),
        saved(clear, "PNG", dpi=(72, 72)),
        saved(palette, "PNG", transparency=bytes([0, 128, 255])),
        saved(grey, "PNG", transparency=7),
        saved(deep, "PNG"),
        saved(bits, "PNG"),
        saved(clear, "PNG", several=True, duration=100),
        interlaced_png(),
        saved(palette, "GIF", several=True, transparency=0, disposal=2, comment=b"hello"),
        saved(rgb, "WEBP", exif=exif, xmp=XMP),
        saved(clear, "WEBP", lossless=True),
        saved(clear, "WEBP", several=True, duration=100),
        saved(rgb, "BMP"),
        saved(palette, "BMP"),
        saved(bits, "BMP"),
        rle_bmp(),
        saved(clear, "AVIF", exif=exif),
        saved(rgb, "AVIF", several=True, duration=100),
        saved(rgb, "PPM"),
        saved(deep, "PPM"),
        saved(bits, "PPM"),
        saved(Image.fromarray(np.asarray(grey, np.float32)), "PPM"),
        b"P3\n# plain\n2 1\n255\n1 2 3 4 5 6\n",
        saved(rgb, "ICO", sizes=[(16, 12)]),
        saved(rgb, "TIFF", several=True),
        saved(rgb, "TIFF", exif=exif, big_tiff=True),
        saved(deep, "TIFF"),
        saved(Image.fromarray(np.asarray(grey, np.float32)), "TIFF"),
        saved(bits, "TIFF", compression="group4"),
        saved(rgb.convert("YCbCr"), "TIFF", compression="jpeg"),
    )
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "zstd", "lzma"):
        yield saved(rgb, "TIFF", compression=compression)
    tiles = TiffImagePlugin.ImageFileDirectory_v2()
    tiles[322], tiles[323] = 16, 16  # TileWidth, TileLength
    yield saved(rgb, "TIFF", compression="tiff_lzw", tiffinfo=tiles)
    held = BytesIO()
    pillow_heif.from_pillow(rgb).save(held)
    yield held.getvalue()


def saved(picture: Image.Image, kind: str, several: bool = False, **options: object) -> bytes:
    """The file that Pillow makes of it, or of it and two more."""
    if several:
        options |= {"save_all": True, "append_images": [draw(*SIZE, 1), draw(*SIZE, 2)]}
    held = BytesIO()
    picture.copy().save(held, kind, **options)  # a copy: JPEG leaves settings in the picture
    return held.getvalue()


def interlaced_png() -> bytes:
    """8x8 grey pixels in Adam7's seven passes, which Pillow reads and doesn't write."""
    passes = ((1, 1), (1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (8, 4))
    rows = b"".join((b"\0" + bytes(range(width))) * height for width, height in passes)
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 1),
        b"IDAT": zlib.compress(rows),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks.items()
    )


def rle_bmp() -> bytes:
    """4x2 pixels of a palette of two, run-length encoded."""
    rows = bytes([4, 0, 0, 0, 2, 1, 0, 3, 0, 1, 1, 0, 0, 1])
    palette = bytes(4) + b"\xff" * 4
    header = struct.pack("<IiiHHIIiiII", 40, 4, 2, 1, 8, 1, len(rows), 0, 0, 2, 0)
    start = 14 + len(header) + len(palette)
    return struct.pack("<2sIII", b"BM", start + len(rows), 0, start) + header + palette + rows


def films() -> Iterator[bytes]:
    """Of each common container and codec, three frames."""
    times = [0.0, 0.04, 0.5]
    for kind in (
        "mp4/libx264", "mp4/libx265", "mp4/libsvtav1", "mov/mjpeg", "mov/prores_ks", "webm/libvpx",
        "webm/libvpx-vp9", "matroska/mpeg4", "avi/mpeg4", "avi/mjpeg", "mpegts/mpeg2video",
        "mpeg/mpeg1video", "ogg/libvpx", "gif/gif", "apng/apng", "flv/flv", "asf/msmpeg4v3",
        "asf/wmv2", "nut/ffv1", "mxf/mpeg2video", "ivf/libvpx", "rm/rv10", "m4v/mpeg4",
        "h264/libx264", "mjpeg/mjpeg", "yuv4mpegpipe/rawvideo",
    ):  # fmt: skip
        yield film(times, kind)
    yield film(times, sound_from=0.0, cover=True, movflags="frag_keyframe+empty_moov")
    yield animation("WEBP", [draw(*SIZE, n) for n in range(3)], [40, 0, 900])
    yield song(cover=True)


def checkpoint(folder: Path) -> Path:
    """A model's folder, small enough to be loaded a hundred times a second."""
    tiny = json.loads(json.dumps(TINY))
    tiny["text_config"] |= {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32}
    tiny["text_config"] |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    tiny["vision_config"] |= {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16}
    return save_checkpoint(folder, random_model(parse_model(tiny)), tiny)
