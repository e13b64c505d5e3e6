"""Films of every kind, whole and broken, all made here; asserted in pixels and times."""

import math
import os
import random
import struct
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from tempfile import gettempdir
from types import SimpleNamespace
from typing import BinaryIO

import av
import numpy as np
import pytest
from films import (
    HEIGHT,
    WIDTH,
    animation,
    damaged,
    film,
    grain,
    laid_down,
    level,
    plain,
    song,
    steady,
    yuv,
)
from PIL import Image

from argus_cli.errors import VideoError
from argus_cli.media.ffmpeg import FFmpegReel
from argus_cli.media.reels import seekable
from argus_cli.media.scenes import find_cuts, scene_cuts
from argus_cli.media.videos import FilmSource, VideoInfo, frames, plan_times, probe

UNEVEN = [0.0, 0.04, 0.08, 0.12, 2.0, 4.0, 4.04, 9.0]
FULL, LIMITED = 2, 1  # AVColorRange
BT709, BT601 = 1, 6  # AVColorSpace


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Nothing that FFmpeg has to say reaches the terminal. (The AV1 encoder of the tests does.)"""
    yield
    said = capfd.readouterr()
    assert not [line for line in (said.out + said.err).splitlines() if not line.startswith("Svt")]


def mean(picture: Image.Image) -> int:
    return round(float(np.asarray(picture).mean()))


def seen(source: FilmSource, times: list[float]) -> list[tuple[float, int]]:
    """(time, number of the frame by its grey level) of what frames() gives."""
    return [
        (frame.time, round((mean(picture) - 30) / 3)) for frame, picture in frames(source, times)
    ]


def everything(source: bytes, rate: int = 25) -> list[tuple[float, Image.Image]]:
    """All frames of a steady film, by PyAV alone: what frames() is measured against."""
    with av.open(BytesIO(source)) as container:
        pictures = [frame.to_image() for frame in container.decode(container.streams.video[0])]
    [(first, _)] = frames(source, [0.0])
    return [(round(first.time + n / rate, 6), picture) for n, picture in enumerate(pictures)]


def on_screen(
    all_frames: list[tuple[float, Image.Image]], times: list[float]
) -> list[tuple[float, Image.Image]]:
    """The rule itself: the last frame that isn't later, or the first; each once."""
    chosen = {
        max((number for number, (start, _) in enumerate(all_frames) if start <= time), default=0)
        for time in times
    }
    return [all_frames[number] for number in sorted(chosen)]


def assert_same(
    found: list[tuple[float, Image.Image]], expected: list[tuple[float, Image.Image]]
) -> None:
    assert [time for time, _ in found] == [time for time, _ in expected]
    for (time, left), (_, right) in zip(found, expected, strict=True):
        assert np.array_equal(np.asarray(left), np.asarray(right)), f"other pixels at {time} s"


# --- times -----------------------------------------------------------------------------------


def test_times_are_those_of_the_frames() -> None:
    vfr = film(UNEVEN)
    assert seen(vfr, UNEVEN) == list(zip(UNEVEN, range(8), strict=True))
    assert seen(vfr, [3.0]) == [(2.0, 4)]  # on screen, not number 75
    assert seen(vfr, [3.999, 4.0, 4.039, 4.04]) == [(2.0, 4), (4.0, 5), (4.04, 6)]
    assert seen(vfr, [-1.0, 8.99, 1e9]) == [(0.0, 0), (4.04, 6), (9.0, 7)]
    assert seen(vfr, [9.0, 0.5, 0.05, 0.6, 0.04]) == [(0.04, 1), (0.12, 3), (9.0, 7)]
    assert seen(vfr, []) == []


def test_frames_are_numbered_until_the_film_is_sought() -> None:
    source = film(steady(60))
    assert [frame.index for frame, _ in frames(source, steady(60))] == list(range(60))
    assert [frame.index for frame, _ in frames(source, [0.0, 0.1, 2.0])] == [0, 2, None]


@pytest.mark.parametrize("kind", ["mp4/libx264", "matroska/libx264", "mpegts/libx264"])
def test_the_clock_starts_with_the_film(kind: str) -> None:
    source = film([5 + time for time in steady(30)], kind)
    assert probe(source).duration == pytest.approx(1.2)
    assert seen(source, [0.0, 0.41]) == [(0.0, 0), (0.4, 10)]


@pytest.mark.parametrize("kind", ["mp4/libx264", "matroska/libx264"])
def test_the_clock_starts_with_the_sound_if_that_comes_first(kind: str) -> None:
    source = film([5 + time for time in steady(30)], kind, sound_from=0.0)
    assert probe(source).duration == pytest.approx(6.2, abs=0.03)
    found = seen(source, [0.0, 5.41])
    assert [number for _, number in found] == [0, 10]
    assert [time for time, _ in found] == pytest.approx([5.0, 5.4], abs=0.03)


def test_a_raw_stream_gets_the_times_of_its_rate(caplog: pytest.LogCaptureFixture) -> None:
    source = film(steady(50), "h264/libx264")
    assert probe(source) == VideoInfo(2.0, WIDTH, HEIGHT, 25.0)
    assert "has no times, taken as 25 frames a second" in caplog.text
    assert seen(source, [0.0, 1.0, 1.99]) == [(0.0, 0), (1.0, 25), (1.96, 49)]


@pytest.mark.parametrize(
    ("kind", "piped"),
    [
        ("matroska/libx264", True),
        ("ivf/libvpx-vp9", True),
        ("flv/libx264", False),
        ("mpegts/libx264", False),
    ],
)
def test_headers_without_or_with_a_wrong_duration(kind: str, piped: bool) -> None:
    source = film(steady(50), kind, piped=piped)
    assert probe(source).duration == pytest.approx(2.0)
    assert seen(source, [1.99]) == [(1.96, 49)]


def test_one_frame_is_a_film() -> None:
    for source in (film([0.0]), film([3.0], "matroska/libx264"), film([0.0], "gif/gif")):
        info = probe(source)
        assert (info.width, info.height) == (WIDTH, HEIGHT) and 0 <= info.duration <= 0.1
        assert [time for time, _ in seen(source, plan_times(info.duration))] == [0.0]


def test_frames_that_look_the_same_are_frames() -> None:
    source = film(steady(30), pictures=[plain(99)] * 30)
    assert seen(source, steady(6, 5)) == [(time, 23) for time in steady(6, 5)]


@pytest.mark.parametrize(
    ("arguments", "times"),
    [
        ({"duration": 10.0}, [number * 0.9999 for number in range(11)]),
        ({"duration": 10.0, "fps": 0.2}, [0.0, 4.9995, 9.999]),
        ({"duration": 10.0, "max_frames": 3}, [0.0, 4.9995, 9.999]),
        ({"duration": 10.0, "max_frames": 1}, [5.0]),
        ({"duration": 0.9}, [0.45]),
        ({"duration": 1.5}, [0.0, 1.499]),
        ({"duration": 0.0}, [0.0]),
        ({"duration": 1e-4, "fps": 1e9, "max_frames": 2}, [0.0, 5e-5]),
        ({"duration": 60.0, "start": 30.0, "end": 34.0, "fps": 0.5}, [30.0, 31.9995, 33.999]),
        ({"duration": 60.0, "start": 59.0, "end": 1e9, "max_frames": 2}, [59.0, 59.999]),
        ({"duration": 1e300, "max_frames": 2}, [0.0, 1e300]),
    ],
)
def test_times_are_spread_evenly_from_end_to_end(
    arguments: dict[str, float], times: list[float]
) -> None:
    assert plan_times(**arguments) == pytest.approx(times)  # type: ignore[arg-type]


@pytest.mark.parametrize("duration", [1e-9, 0.04, 1.0, 59.94, 7200.0, 1e12, 1e308])
@pytest.mark.parametrize("fps", [1e-3, 1.0, 29.97, 1e12])
def test_planned_times_rise_within_the_film(duration: float, fps: float) -> None:
    for most in (1, 2, 64):
        times = plan_times(duration, fps=fps, max_frames=most)
        assert 1 <= len(times) <= most and times[0] >= 0 and times[-1] <= duration
        assert all(early < late for early, late in pairwise(times))


@pytest.mark.parametrize(
    "arguments",
    [
        {"duration": 10.0, "start": 10.0},
        {"duration": 10.0, "start": 5.0, "end": 5.0},
        {"duration": -1.0},
        {"duration": 10.0, "start": -1.0},
        {"duration": 10.0, "end": -1.0},
        {"duration": math.nan},
        {"duration": 10.0, "start": math.nan},
        {"duration": 10.0, "end": math.nan},
        {"duration": math.inf},
        {"duration": 10.0, "fps": 0.0},
        {"duration": 10.0, "fps": math.nan},
        {"duration": 10.0, "max_frames": 0},
        {"duration": 0.0, "start": 1.0},
    ],
)
def test_plans_that_make_no_sense(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        plan_times(**arguments)  # type: ignore[arg-type]


# --- seeking ---------------------------------------------------------------------------------

# kind -> whether seeking gets anywhere
KINDS = {
    "mp4/libx264": True, "mov/prores_ks": True, "matroska/libx264": True, "mpegts/libx264": True,
    "avi/mpeg4": True, "avi/libx264": True, "webm/libvpx-vp9": True, "mp4/libx265": True,
    "mpegts/libx265": True, "mpegts/mpeg2video": True, "mpeg/mpeg2video": True, "flv/libx264": True,
    "mp4/libsvtav1": True, "ivf/libvpx-vp9": True, "nut/libx264": True, "gif/gif": False,
    "apng/apng": False,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_sparse_sampling_sees_the_same_as_decoding_everything(kind: str) -> None:
    # MPEG-PS times its packs: frames have to be larger than one.
    tile = (3, 3, 1) if kind.startswith("mpeg/") else (1, 1, 1)
    source = film(steady(75), kind, [np.tile(grain(number), tile) for number in range(75)])
    reference = everything(source)
    assert len(reference) == 75 and reference[0][0] <= 0.08
    chance = random.Random(kind)
    jumped = False
    plans = [[2.5], [0.0, 2.9], [0.9, 1.9, 2.9], plan_times(3.0, fps=4), plan_times(3.0, fps=15)]
    plans += [sorted(chance.uniform(0, 3.1) for _ in range(chance.randint(1, 6))) for _ in range(8)]
    for times in plans:
        found = list(frames(source, times))
        jumped |= any(frame.index is None for frame, _ in found)
        assert_same(
            [(frame.time, picture) for frame, picture in found], on_screen(reference, times)
        )
    assert jumped is KINDS[kind]


@pytest.mark.parametrize("kind", ["mp4/libx264", "mpegts/libx264"])
def test_keyframes_that_need_a_run_up(kind: str) -> None:
    source = film(
        steady(75), kind, options={"x264-params": "intra-refresh=1:bframes=0", "crf": "20"}
    )
    reference = everything(source)
    for times in ([1.0], [1.3, 2.7], [0.5, 1.7, 2.2]):
        found = [(frame.time, picture) for frame, picture in frames(source, times)]
        assert_same(found, on_screen(reference, times))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[av.VideoFrame]:
    """All that was decoded, wanted or not."""
    done: list[av.VideoFrame] = []
    decode = FFmpegReel._decode

    def noted(reel: FFmpegReel, packet: av.Packet | None) -> list[av.VideoFrame]:
        frames = decode(reel, packet)
        done.extend(frames)
        return frames

    monkeypatch.setattr(FFmpegReel, "_decode", noted)
    return done


@pytest.mark.parametrize("kind", ["mp4/libx264", "matroska/libx264", "mpegts/libx264"])
def test_seeking_spares_the_decoder(kind: str, decoded: list[av.VideoFrame]) -> None:
    source = film(steady(250), kind, [plain(level(number)) for number in range(250)], gop=10)
    times = [1.0, 3.0, 5.0, 7.0, 9.0]
    assert [time for time, _ in seen(source, times)] == times
    assert len(decoded) <= len(times) * 25


@pytest.mark.parametrize("gop", [10, 50, 1000])
def test_dense_sampling_decodes_little_twice(gop: int, decoded: list[av.VideoFrame]) -> None:
    source = film(steady(250), pictures=[plain(level(n)) for n in range(250)], gop=gop)
    assert len(seen(source, plan_times(10.0, fps=3))) == 31
    assert len(decoded) <= 250 * 1.2


# --- pixels ----------------------------------------------------------------------------------


def corners(picture: Image.Image) -> str:
    """The colours of the corners, clockwise from the top left."""
    right, bottom = picture.width - 9, picture.height - 9
    names = {(1, 0, 0): "r", (0, 1, 0): "g", (0, 0, 1): "b", (1, 1, 1): "w"}
    points = [(8, 8), (right, 8), (right, bottom), (8, bottom)]
    return "".join(names[tuple(int(part > 128) for part in picture.getpixel(at))] for at in points)  # type: ignore[union-attr, misc]


def quarters() -> np.ndarray:
    """Red, green, white, blue, clockwise from the top left."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    middle = HEIGHT // 2, WIDTH // 2
    pixels[: middle[0], : middle[1]] = 255, 0, 0
    pixels[: middle[0], middle[1] :] = 0, 255, 0
    pixels[middle[0] :, middle[1] :] = 255, 255, 255
    pixels[middle[0] :, : middle[1]] = 0, 0, 255
    return pixels


@pytest.mark.parametrize(
    ("matrix", "looks"),
    [
        ((1, 0, 0, 1), "rgwb"),
        ((0, 1, -1, 0), "brgw"),
        ((-1, 0, 0, -1), "wbrg"),
        ((0, -1, 1, 0), "gwbr"),
        ((-1, 0, 0, 1), "grbw"),
        ((1, 0, 0, -1), "bwgr"),
        ((0, 1, 1, 0), "rbwg"),
        ((0, -1, -1, 0), "wgrb"),
    ],
)
def test_films_are_set_upright(matrix: tuple[int, int, int, int], looks: str) -> None:
    source = laid_down(film([0.0, 0.04], pictures=[quarters()] * 2), matrix)
    [(_, picture)] = frames(source, [0.0])
    assert corners(picture) == looks
    assert picture.size == ((HEIGHT, WIDTH) if matrix[0] == 0 else (WIDTH, HEIGHT))
    info = probe(source)
    assert (info.width, info.height) == picture.size


def test_a_matrix_beside_side_data_unknown_to_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(kind: int) -> None:
        raise ValueError(f"{kind} is not a valid Type")

    monkeypatch.setattr("av.sidedata.sidedata.Type", unknown)
    source = laid_down(film([0.0], pictures=[quarters()]), (0, 1, -1, 0))
    [(_, picture)] = frames(source, [0.0])
    assert corners(picture) == "brgw"


@pytest.mark.parametrize("kind", ["mp4/libx264", "matroska/libx264", "avi/mpeg4"])
@pytest.mark.parametrize(
    ("aspect", "size"),
    [(Fraction(4, 3), (85, 48)), (Fraction(3, 4), (64, 64)), (Fraction(200, 1), (64, 48))],
)
def test_pixels_are_made_square(kind: str, aspect: Fraction, size: tuple[int, int]) -> None:
    source = film([0.0, 0.04], kind, [quarters()] * 2, aspect=aspect)
    info = probe(source)
    assert (info.width, info.height) == size
    [(_, picture)] = frames(source, [0.0])
    assert picture.size == size and corners(picture) == "rgwb"


def test_pixels_are_made_square_before_they_are_turned() -> None:
    source = film([0.0], pictures=[quarters()], aspect=Fraction(4, 3))
    [(_, picture)] = frames(laid_down(source, (0, 1, -1, 0)), [0.0])
    assert picture.size == (48, 85) and corners(picture) == "brgw"


@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuvj420p", "yuv420p10le"])
def test_black_is_black_and_white_is_white(pix_fmt: str) -> None:
    scale, neutral = (4, 512) if "10" in pix_fmt else (1, 128)
    tags = {"color_range": FULL if "j" in pix_fmt else LIMITED}
    black, white = (0, 255) if "j" in pix_fmt else (16, 235)
    shades = [yuv(pix_fmt, shade * scale, neutral, neutral, **tags) for shade in (black, white)]
    source = film([0.0, 0.04], pictures=shades, pix_fmt=pix_fmt)
    values = [mean(picture) for _, picture in frames(source, [0.0, 0.04])]
    assert values == [pytest.approx(0, abs=3), pytest.approx(255, abs=3)]


@pytest.mark.parametrize(
    ("stored", "size", "tags"),
    [
        ((63, 102, 240), (WIDTH, HEIGHT), {"colorspace": BT709}),
        ((81, 90, 240), (WIDTH, HEIGHT), {"colorspace": BT601}),
        ((81, 90, 240), (WIDTH, HEIGHT), {}),  # nothing said: small films are BT.601
        ((63, 102, 240), (1280, 720), {}),  # and large ones BT.709
        ((81, 90, 240), (1280, 720), {"colorspace": BT601}),
    ],
)
def test_red_is_red(
    stored: tuple[int, int, int], size: tuple[int, int], tags: dict[str, int]
) -> None:
    source = film([0.0], pictures=[yuv("yuv420p", *stored, size=size, **tags)], tags=tags)
    [(_, picture)] = frames(source, [0.0])
    assert picture.getpixel((30, 30)) == pytest.approx((255, 0, 0), abs=5)


def half_clear(number: int) -> Image.Image:
    picture = Image.new("RGBA", (WIDTH, HEIGHT), (20 * number, 0, 0, 255))
    picture.paste((0, 0, 255, 0), (WIDTH // 2, 0, WIDTH, HEIGHT))
    return picture


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "webm/libvpx-vp9", "mov/png"])
def test_transparency_lies_on_white(kind: str) -> None:
    pictures = [half_clear(number) for number in range(5)]
    if kind in ("GIF", "WEBP"):
        source = animation(kind, pictures, [40] * 5)
    else:
        pix_fmt = "rgba" if kind.endswith("png") else "yuva420p"
        source = film(
            steady(5), kind, [np.asarray(picture) for picture in pictures], pix_fmt=pix_fmt
        )
    found = list(frames(source, [0.13]))
    assert [frame.time for frame, _ in found] == [0.12]
    assert found[0][1].mode == "RGB"
    assert found[0][1].getpixel((8, 20)) == pytest.approx((60, 0, 0), abs=8)
    assert found[0][1].getpixel((WIDTH - 8, 20)) == pytest.approx((255, 255, 255), abs=3)


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_animations(kind: str) -> None:
    pictures = [Image.fromarray(plain(level(number))) for number in range(5)]
    source = animation(kind, pictures, [100, 200, 50, 700, 300])
    assert probe(source).duration == pytest.approx(1.35)
    assert (probe(source).width, probe(source).height) == (WIDTH, HEIGHT)
    assert seen(source, [0.0, 0.25, 0.3, 1.04, 1.2]) == [
        (0.0, 0),
        (0.1, 1),
        (0.3, 2),
        (0.35, 3),
        (1.05, 4),
    ]
    assert [frame.index for frame, _ in frames(source, [0.0, 1.2])] == [0, 4]


def test_frames_can_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    source = film(steady(3))
    monkeypatch.setattr("argus_cli.media.containers.DEFAULT_MAX_PIXELS", WIDTH * HEIGHT - 1)
    assert refused(source) == "<bytes>: not one frame of it decodes"


# --- which stream, which files -----------------------------------------------------------------


def test_cover_art_is_not_the_film() -> None:
    source = film(steady(30), cover=True, sound_from=0.0)
    with av.open(BytesIO(source)) as container:
        assert len(container.streams.video) == 2
    assert probe(source).width == WIDTH
    assert seen(source, [1.0]) == [(1.0, 25)]


def test_of_two_films_in_a_file_the_default_counts(tmp_path: Path) -> None:
    path = tmp_path / "two.mkv"
    with av.open(str(path), "w") as output:
        streams = [output.add_stream("libx264", rate=25) for _ in range(2)]
        for stream, size in zip(streams, (32, 64), strict=True):
            stream.width = stream.height = size
            stream.pix_fmt = "yuv420p"
        streams[0].disposition = av.stream.Disposition.default
        for stream in streams:
            picture = av.VideoFrame.from_ndarray(plain(99, stream.width, stream.height), "rgb24")
            output.mux(stream.encode(picture))
        for stream in streams:
            output.mux(stream.encode(None))
    assert probe(path).width == 32


def test_a_path_bytes_and_streams_are_the_same_film(tmp_path: Path) -> None:
    source = film(UNEVEN)
    path = tmp_path / "film with spaces, ünïcode.mp4"
    path.write_bytes(source)
    expected = seen(source, [0.0, 3.0])
    stream = BytesIO(source)
    stream.read(100)
    for same in (path, str(path), stream):
        assert probe(same) == probe(source)
        assert seen(same, [0.0, 3.0]) == expected
    assert not stream.closed


def pipe(content: bytes) -> BinaryIO:
    """What stdin is behind ``cat film.mp4 |``."""
    reading, writing = os.pipe()

    def fill() -> None:
        with open(writing, "wb") as file:
            file.write(content)

    threading.Thread(target=fill, daemon=True).start()
    return open(reading, "rb")


def test_a_pipe_is_laid_down_once() -> None:
    source = film(UNEVEN)
    with pipe(source) as once:
        assert seen(once, [3.0]) == [(2.0, 4)]
    with pipe(source) as stream, seekable(stream) as film_again:
        assert probe(film_again) == probe(source)
        assert seen(film_again, [3.0]) == [(2.0, 4)]


def test_a_pipe_without_an_end_does_not_fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return bytes(size or 0)

        def seekable(self) -> bool:
            return False

    monkeypatch.setattr("argus_cli.media.reels.disk_usage", lambda _: SimpleNamespace(free=2**20))
    told = f"<bytes>: too much for {gettempdir()}, save it as a file first or set TMPDIR"
    assert refused(Endless()) == told


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files")
def test_files_are_closed_when_one_has_seen_enough(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    path.write_bytes(film(steady(30)))
    before = os.listdir("/proc/self/fd")
    looking = frames(path, [0.0, 0.5])
    next(looking)
    assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    looking.close()
    assert os.listdir("/proc/self/fd") == before
    with pytest.raises(ZeroDivisionError):
        for _ in frames(path, [0.0, 0.5]):
            raise ZeroDivisionError
    assert os.listdir("/proc/self/fd") == before


# --- bad input -----------------------------------------------------------------------------------


def refused(source: FilmSource) -> str:
    """The one line that both ways in give."""
    with pytest.raises(VideoError) as probed:
        probe(source)
    with pytest.raises(VideoError) as watched:
        list(frames(source, [0.0]))
    assert str(probed.value) == str(watched.value)
    assert "\n" not in str(probed.value)
    return str(probed.value)


def test_what_is_not_a_film(tmp_path: Path) -> None:
    jpeg = BytesIO()
    Image.new("RGB", (64, 48)).save(jpeg, "JPEG")
    for content in (b"hello world\n" * 100, bytes(5000), jpeg.getvalue(), b"\0"):
        assert refused(content) == "<bytes>: not a film, or damaged from the start"
    assert refused(b"") == "<bytes>: the file is empty"
    for content in (song(), song(cover=True)):
        assert refused(content) == "<bytes>: no video stream"
    assert refused(tmp_path / "none.mp4") == f"{tmp_path}/none.mp4: No such file or directory"
    assert refused(tmp_path) == f"{tmp_path}: Is a directory"


def test_an_interrupted_recording() -> None:
    source = film(steady(50))
    assert (
        refused(source[: len(source) // 2])
        == "<bytes>: incomplete recording: its index (moov) is missing or damaged"
    )


@pytest.mark.parametrize(
    ("kind", "movflags"),
    [
        ("mp4/libx264", "faststart"),
        ("mp4/libx264", "frag_keyframe+empty_moov"),
        ("matroska/libx264", ""),
        ("mpegts/libx264", ""),
        ("webm/libvpx-vp9", ""),
        ("avi/mpeg4", ""),
        ("flv/libx264", ""),
    ],
)
def test_of_a_film_cut_short_the_beginning_is_used(kind: str, movflags: str) -> None:
    whole = film(steady(75), kind, movflags=movflags)
    source = whole[: len(whole) * 2 // 3]
    reference = everything(whole)
    duration = probe(source).duration
    assert 1.0 < duration < 2.5
    times = plan_times(duration, fps=5)
    found = [(frame.time, picture) for frame, picture in frames(source, times)]
    assert found[-1][0] > duration - 0.5
    assert_same(found[:-2], on_screen(reference, times)[: len(found) - 2])
    late = [frame.time for frame, _ in frames(source, [0.0, 2.9])]
    assert late[0] == found[0][0] and late[-1] > duration - 0.5


@pytest.mark.parametrize(
    ("kind", "movflags"),
    [
        ("mp4/libx264", "faststart"),
        ("mp4/libx264", "frag_keyframe+empty_moov"),
        ("mov/mpeg4", "faststart"),
        ("matroska/libx264", ""),
        ("webm/libvpx-vp9", ""),
    ],
)
def test_a_film_cut_short_is_told_of(
    kind: str, movflags: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole = film([number / 2 for number in range(40)], kind, movflags=movflags)
    duration = probe(whole[: len(whole) * 6 // 10]).duration
    [warning] = caplog.messages
    assert warning.startswith(f"<bytes>: cut short: ends at {duration:.2f} s, not at 1")


def told_wrong(matroska: bytes) -> bytes:
    """The film, of which the header now tells that it lasts a minute."""
    at = matroska.index(b"\x44\x89\x88") + 3
    return matroska[:at] + struct.pack(">d", 60_000.0) + matroska[at + 8 :]


WHOLE: dict[str, Callable[[], bytes]] = {
    "MP4 in fragments": lambda: film(steady(80), movflags="frag_keyframe+empty_moov"),
    "MP4 with a long last frame": lambda: film([0.0, 1.0, 9.0]),
    "MP4 with late sound": lambda: film(steady(80), sound_from=2.0),
    "Matroska through a pipe": lambda: film(steady(80), "matroska/libx264", piped=True),
    "Matroska whose header is wrong": lambda: told_wrong(film(steady(80), "matroska/libx264")),
    "Matroska and rubbish": lambda: film(steady(80), "matroska/libx264") + bytes(1000),
    "FLV": lambda: film(steady(80), "flv/libx264"),
    "AVI": lambda: film(steady(80), "avi/mpeg4"),
    "MPEG": lambda: film(steady(80), "mpegts/mpeg2video"),
}


@pytest.mark.parametrize("what", WHOLE)
def test_a_whole_film_is_not_told_of(what: str, caplog: pytest.LogCaptureFixture) -> None:
    probe(WHOLE[what]())
    assert not caplog.messages


def test_not_one_frame_decodes() -> None:
    whole = film(steady(10), movflags="faststart")
    source = damaged(whole, whole.index(b"mdat") / len(whole) + 0.001, 1.0)
    assert refused(source) == "<bytes>: not one frame of it decodes"


@pytest.mark.parametrize(
    "kind", ["mp4/libx264", "mp4/libsvtav1", "matroska/libx264", "mpegts/libx264"]
)
def test_damage_in_the_middle_is_stepped_over(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    whole = film(steady(75), kind)
    source = damaged(whole, 0.4, 0.55)
    with av.open(BytesIO(whole)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        hit = [0.4 <= packet.pos / len(whole) < 0.55 for packet in packets]
        keys = [n for n, packet in enumerate(packets) if packet.is_keyframe]
    before = max(key for key in keys if key <= hit.index(True)) / 25
    last = len(hit) - 1 - hit[::-1].index(True)
    after = [key / 25 for key in keys if key > last][1]
    good, found = seen(whole, steady(80)), seen(source, steady(80))
    assert probe(source).duration == pytest.approx(3.0, abs=0.05)
    assert all(early < late for (early, _), (late, _) in pairwise(found))
    for one, other in ((found, good), (good, found)):
        assert {shot for shot in one if shot[0] < before} <= set(other)
        assert {shot for shot in one if shot[0] > after + 0.16} <= set(other)
    if kind.startswith("mp4"):
        assert "<bytes>: damaged, nothing decodes from 1." in caplog.text


def test_playlists_open_nothing(tmp_path: Path) -> None:
    (tmp_path / "film.ts").write_bytes(film(steady(10), "mpegts/libx264"))
    (tmp_path / "film.mp4").write_bytes(film(steady(10)))
    lists = {
        "a.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:0.4,\nfilm.ts\n#EXT-X-ENDLIST\n",
        "b.ffconcat": "ffconcat version 1.0\nfile film.mp4\n",
        "c.sdp": "v=0\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n",
        "d.mp4": "ffconcat version 1.0\nfile film.mp4\n",
    }
    for name, content in lists.items():
        path = tmp_path / name
        path.write_text(content)
        assert refused(path) == f"{path}: not a film, or damaged from the start"


def test_addresses_are_names_of_files() -> None:
    asked = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/film.mp4"
        assert refused(url) == f"{url}: No such file or directory"
        server.shutdown()
    assert not asked
    assert refused("concat:a.ts|b.ts") == "concat:a.ts|b.ts: No such file or directory"


# --- scenes --------------------------------------------------------------------------------------


def test_cuts_are_found_between_scenes() -> None:
    scenes = [(30, 0.0), (30, 90.0), (15, 20.0)]  # frames, how far in a scene the grey lies
    pictures = [
        grain(number) // 2 + int(shift) for count, shift in scenes for number in range(count)
    ]
    source = film(steady(75), pictures=pictures)
    assert scene_cuts(source) == [1.2, 2.4]
    assert scene_cuts(source, start=1.5) == [2.4]
    assert scene_cuts(source, start=0.3, end=2.0) == [1.2]
    assert scene_cuts(film(steady(30))) == []
    assert scene_cuts(film([0.0])) == []
    assert scene_cuts(
        animation("WEBP", [Image.new("L", (64, 48), n) for n in (9, 99)], [900] * 2)
    ) == [0.9]


def test_what_stands_out_is_a_cut() -> None:
    def cuts(*changes: tuple[float, float], usual: float = 1.0) -> list[float]:
        return list(find_cuts(sorted(changes + tuple((t, usual) for t in steady(100))), 0.5))

    assert cuts() == cuts(usual=15.0) == []
    assert cuts((1.01, 30.0), (1.05, 30.0), (2.01, 30.0)) == [1.01, 2.01]
    assert cuts((1.01, 30.0), usual=15.0) == [] and cuts((1.01, 40.0), usual=15.0) == [1.01]
    assert list(find_cuts([(t, 1.0 if t < 2 else 15.0) for t in steady(100)], 0.5)) == []  # a pan
    assert list(find_cuts([(5.0 * n, 40.0) for n in range(4)], 0.5)) == [0.0, 5.0, 10.0, 15.0]
