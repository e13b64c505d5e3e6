"""Pictures read in a process of their own: the same as here, and nothing that they do harms us."""

import os
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import hostile
import numpy as np
import pytest
from conftest import draw
from PIL import ExifTags, Image

from argus_cli import picture_reader
from argus_cli.errors import ImageError
from argus_cli.media.images import DEFAULT_MAX_PIXELS
from argus_cli.picture_reader import Look, PictureReader, read_picture
from argus_cli.smolvlm.config import PreprocessConfig
from argus_cli.workers import WorkersUnavailable

LOOK = Look(PreprocessConfig(64, 256, True), "full", DEFAULT_MAX_PIXELS, dated=True)


@pytest.fixture(scope="module")
def reader() -> Iterator[PictureReader]:
    reader = PictureReader(60.0, DEFAULT_MAX_PIXELS)
    yield reader
    reader.close()


@pytest.fixture
def dated(photo: Path) -> Path:
    exif = Image.Exif()
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "2019:08:07 10:11:12"
    draw(90, 60).save(photo, exif=exif)
    return photo


@pytest.mark.parametrize(
    "how", [Path, str, Path.read_bytes, lambda path: BytesIO(path.read_bytes())]
)
def test_a_picture_is_the_same_wherever_it_is_read(
    reader: PictureReader, dated: Path, how: Callable[[Path], object]
) -> None:
    there, here = reader(how(dated), LOOK), read_picture(how(dated), LOOK)  # type: ignore[arg-type]
    assert (there.size, there.grid, there.taken) == (here.size, here.grid, here.taken)
    assert np.array_equal(there.tiles, here.tiles) and there.tiles.flags.writeable
    assert set(there.laps) == {"decode", "preprocess"} and min(there.laps.values()) > 0


def test_the_day_is_read_only_where_it_matters(reader: PictureReader, dated: Path) -> None:
    assert reader(dated, LOOK).taken == "2019-08-07"
    undated = Look(LOOK.preprocess, LOOK.tiles, LOOK.max_pixels, dated=False)
    assert reader(dated, undated).taken == ""


def test_messages_are_the_same(reader: PictureReader, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"\xff\xd8\xff")
    messages = set()
    for read in (reader, read_picture):
        with pytest.raises(ImageError) as caught:
            read(bad, LOOK)
        messages.add(str(caught.value))
    assert len(messages) == 1


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("hang", "took longer than 1 s, --timeout raises the limit"),
        ("crash", r"its decoder crashed \(SIGSEGV\)"),
    ],
)
def test_what_ends_the_process_is_one_picture_s_error(
    monkeypatch: pytest.MonkeyPatch, photo: Path, name: str, told: str
) -> None:
    monkeypatch.setattr(picture_reader, "read_picture", hostile.read_picture)
    reader = PictureReader(1.0, DEFAULT_MAX_PIXELS)
    with pytest.raises(ImageError, match=rf"^/there/{name}.jpg: {told}$"):
        reader(f"/there/{name}.jpg", LOOK)
    assert reader(photo, LOOK).size == (90, 60)
    reader.close()


def test_nobody_blames_a_picture_for_what_happened_before(photo: Path) -> None:
    reader = PictureReader(60.0, DEFAULT_MAX_PIXELS)
    assert reader(photo, LOOK).size == (90, 60)
    assert reader._worker
    reader._worker.close()
    assert reader(photo, LOOK).size == (90, 60)
    reader.close()


def test_a_worker_that_died_is_put_away(photo: Path) -> None:
    reader = PictureReader(60.0, DEFAULT_MAX_PIXELS)
    reader(photo, LOOK)
    assert reader._worker
    dead = reader._worker._process
    dead.kill()
    dead.wait()
    assert reader(photo, LOOK).size == (90, 60)
    assert dead.stdout and dead.stdout.closed
    reader.close()


def test_a_start_that_fails_once_lifts_the_limit_once(
    monkeypatch: pytest.MonkeyPatch, photo: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def busy(*_: object) -> None:
        raise WorkersUnavailable("Resource temporarily unavailable")

    reader = PictureReader(60.0, DEFAULT_MAX_PIXELS)
    reader(photo, LOOK)
    assert reader._worker
    reader._worker.close()
    with monkeypatch.context() as patch:
        patch.setattr(picture_reader, "Worker", busy)
        assert reader(photo, LOOK).size == (90, 60)
    assert caplog.messages == [
        "pictures are read without a time limit: Resource temporarily unavailable"
    ]
    reader(photo, LOOK)
    assert reader._worker.is_alive
    reader.close()


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_closed_it_reads_and_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, photo: Path, timeout: float | None
) -> None:
    monkeypatch.setattr(picture_reader, "Worker", None)
    reader = PictureReader(timeout, DEFAULT_MAX_PIXELS)
    reader.close()
    with pytest.raises(ImageError, match=r"photo.jpg: nothing more is read$"):
        reader(photo, LOOK)


class Endless(BytesIO):
    name = "<stdin>"

    def read(self, size: int | None = -1) -> bytes:
        return bytes(size or 0)


class Broken(BytesIO):
    name = "<stdin>"

    def read(self, size: int | None = -1) -> bytes:
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize(
    ("stream", "told"), [(Endless, "more than 0 MB and no end"), (Broken, "Input/output error")]
)
@pytest.mark.parametrize("timeout", [None, 60.0])
def test_a_stream_that_breaks_is_one_picture_s_error(
    monkeypatch: pytest.MonkeyPatch, stream: type[BytesIO], told: str, timeout: float | None
) -> None:
    monkeypatch.setattr("argus_cli.media.images.MAX_STREAM_BYTES", 1000)
    reader = PictureReader(timeout, DEFAULT_MAX_PIXELS)
    with pytest.raises(ImageError, match=rf"^<stdin>: {told}$"):
        reader(stream(), LOOK)


def test_the_day_of_a_stream_is_read_here_too(dated: Path) -> None:
    with open(dated, "rb") as stream:
        assert PictureReader(None, DEFAULT_MAX_PIXELS)(stream, LOOK).taken == "2019-08-07"


def test_a_pipe_is_read_here_and_decoded_there(reader: PictureReader, photo: Path) -> None:
    ours, theirs = os.pipe()
    os.write(theirs, photo.read_bytes())
    os.close(theirs)
    assert reader(f"/dev/fd/{ours}", LOOK).size == (90, 60)  # what <(...) of the shell is
    os.close(ours)


def test_a_pipe_to_which_nobody_writes(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.jpg"
    os.mkfifo(pipe)
    reader = PictureReader(0.1, DEFAULT_MAX_PIXELS)
    with pytest.raises(ImageError, match=r"pipe.jpg: it didn't come within 0.1 s, --timeout"):
        reader(pipe, LOOK)
    pipe.write_bytes(b"")  # lets the thread go
    reader.close()


@pytest.mark.parametrize("timeout", [None, 0.0, 60.0])
def test_without_a_timeout_or_a_python_to_start_it_is_read_here(
    monkeypatch: pytest.MonkeyPatch, photo: Path, caplog: pytest.LogCaptureFixture, timeout: float
) -> None:
    monkeypatch.setattr("sys.executable", None)
    reader = PictureReader(timeout, DEFAULT_MAX_PIXELS)
    assert reader(photo, LOOK).size == reader(photo, LOOK).size == (90, 60)
    told = "pictures are read without a time limit: this Python can't be started again"
    assert caplog.messages == [told] * bool(timeout)
