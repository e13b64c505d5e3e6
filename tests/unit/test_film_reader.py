"""Films read in a process of their own: the same answers, and a film's end is not ours."""

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader, BytesIO
from pathlib import Path
from threading import Thread
from typing import BinaryIO

import hostile
import pytest
from films import damaged, film, steady

from argus_cli import film_reader as module
from argus_cli.errors import VideoError
from argus_cli.film_reader import film_reader
from argus_cli.media import reels
from argus_cli.media.scenes import scene_cuts
from argus_cli.media.videos import frames, probe

TIMES = [0.0, 0.5, 1.2]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("films") / "clip.mp4"
    path.write_bytes(film(steady(40)))
    return path


@contextmanager
def piped(path: Path) -> Iterator[BinaryIO]:
    ours, theirs = os.pipe()
    os.write(theirs, path.read_bytes())
    os.close(theirs)
    with open(ours, "rb") as stream:
        yield stream


@contextmanager
def as_it_is(film: object) -> Iterator[object]:
    yield film


@pytest.mark.parametrize(
    "how",
    [as_it_is, lambda path: as_it_is(BytesIO(path.read_bytes())), piped],
    ids=["path", "stream", "pipe"],
)
def test_a_film_is_the_same_wherever_it_is_read(clip: Path, how: Callable[[Path], object]) -> None:
    with how(clip) as source, film_reader(source, 60.0) as ask:  # type: ignore[attr-defined]
        assert ask(hostile.parent) == os.getpid()
        assert ask(probe) == probe(clip)
        assert ask(scene_cuts, start=0.0, end=9.0) == scene_cuts(clip)
        for (frame, picture), (other, same) in zip(
            ask(frames, TIMES), frames(clip, TIMES), strict=True
        ):
            assert frame == other and picture.tobytes() == same.tobytes()


def test_without_a_timeout_it_is_read_here(clip: Path) -> None:
    with film_reader(clip, None) as ask:
        assert ask(hostile.parent) == os.getppid()


@pytest.mark.parametrize("function", [hostile.hang, hostile.read_in_circles])
def test_a_film_that_leads_nowhere(clip: Path, function: Callable[[BinaryIO], None]) -> None:
    with (
        pytest.raises(VideoError, match=rf"^{clip}: took longer than 0.3 s, --timeout raises"),
        film_reader(clip, 0.3) as ask,
    ):
        ask(function)  # type: ignore[arg-type]


def test_all_of_a_pipe_is_read(tmp_path: Path) -> None:
    whole = tmp_path / "whole.mp4"
    whole.write_bytes(bytes(3000))  # what a file holds back before it is written
    with piped(whole) as stream, film_reader(stream, 60.0) as ask:
        assert ask(BufferedReader.seek, 0, os.SEEK_END) == 3000  # type: ignore[arg-type]


def test_a_named_pipe_is_read_as_it_comes(clip: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.mp4"
    os.mkfifo(pipe)
    Thread(target=pipe.write_bytes, args=[clip.read_bytes()]).start()
    with film_reader(pipe, 60.0) as ask:
        assert ask(probe) == probe(clip)


@pytest.mark.parametrize("opened", [False, True])
def test_a_pipe_to_which_nobody_writes(tmp_path: Path, opened: bool) -> None:
    pipe = tmp_path / "pipe.mp4"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR) if opened else None
    with (
        pytest.raises(VideoError, match=r"pipe.mp4: it didn't come within 0.1 s, --timeout"),
        film_reader(pipe, 0.1),
    ):
        pass
    if writer:
        os.close(writer)


def test_reading_on_is_getting_on(tmp_path: Path) -> None:
    long = tmp_path / "long.mp4"
    long.write_bytes(bytes(2**21))
    with film_reader(long, 1.0) as ask:
        assert ask(hostile.read_slowly) == 2**21  # type: ignore[arg-type]


def test_warnings_are_heard(caplog: pytest.LogCaptureFixture) -> None:
    content = damaged(film(steady(60), "mpegts/libx264"), 0.4, 0.6)
    with film_reader(content, 60.0) as ask:
        list(ask(frames, steady(60)))
    assert any(
        message.startswith("<bytes>: damaged, nothing decodes") for message in caplog.messages
    )


def test_a_film_that_is_gone(tmp_path: Path) -> None:
    with (
        pytest.raises(VideoError, match="gone.mp4: No such file"),
        film_reader(tmp_path / "gone.mp4", 60.0),
    ):
        pass


def test_leaving_early_leaves_no_process(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(
        module, "Worker", lambda *args, make=module.Worker: made.append(make(*args)) or made[0]
    )
    with film_reader(clip, 60.0) as ask:
        next(ask(frames, TIMES))
    assert not made[0].is_alive


def test_a_python_that_can_not_be_started_again(
    clip: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.executable", None)
    with film_reader(clip, 60.0) as ask:
        assert ask(probe) == probe(clip)
    assert caplog.messages[0].startswith(f"{clip}: read without a time limit")


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_without_a_folder_for_temporary_files_a_pipe_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, timeout: float | None
) -> None:
    class Pipe(BytesIO):
        def seekable(self) -> bool:
            return False

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    told = "<bytes>: no folder for temporary files can be written, set TMPDIR to one"
    with pytest.raises(VideoError, match=told), film_reader(Pipe(b"film"), timeout):
        pass


@pytest.mark.parametrize("kind", [BytesIO, bytes])
def test_a_full_folder_for_temporary_files_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type
) -> None:
    class Full(BytesIO):
        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(reels, "TemporaryFile", Full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told = f"<bytes>: No space left on device for {tmp_path}, save it as a file first or set TMPDIR"
    with pytest.raises(VideoError, match=told), film_reader(kind(b"film"), 60.0):
        pass
