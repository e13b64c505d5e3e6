"""`argus video` on films made here: output, streams and exit codes."""

import fcntl
import json
import logging
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import films
import pytest

from argus_cli.cli.app import main


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def video(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    def run(*words: object) -> Done:
        model = ("-m", tiny_folder, "--dtype", "float32", "--max-new-tokens", 4)
        monkeypatch.setattr(sys, "argv", ["argus", "video", *map(str, (*words, *model))])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """Six seconds, a frame a second, all different."""
    path = tmp_path / "clip.mp4"
    path.write_bytes(films.film([float(second) for second in range(6)]))
    return path


def test_text_has_a_line_a_segment_and_the_summary(video, clip: Path) -> None:  # type: ignore[no-untyped-def]
    done = video(clip, "--window", 2)
    assert (done.code, done.err) == (0, "")
    *segments, summary = done.out.splitlines()
    assert segments and summary.startswith("Summary: ")
    assert segments[0].startswith("[00:00-00:0")
    assert "Summary" not in video(clip, "--no-summary").out


def test_json_record(video, clip: Path) -> None:  # type: ignore[no-untyped-def]
    record = json.loads(video(clip, "-f", "json", "--window", 3, "--no-summary").out)
    assert record["schema"] == 1 and record["path"] == str(clip)
    assert (record["width"], record["height"]) == (64, 48)
    assert [frame["time"] for frame in record["frames"]] == [0, 1, 2, 3, 4, 5]
    assert record["segments"][0]["start"] == 0
    assert record["segments"][-1]["end"] == pytest.approx(record["duration"], abs=1e-3)
    assert record["summary"] is None and record["model"] == "tiny"


@pytest.mark.parametrize(
    ("format", "begins"),
    [
        ("srt", "1\n00:00:00,000 --> "),
        ("vtt", "WEBVTT\n"),
        ("tsv", "start\tend"),
        ("html", "<!doctype html>"),
    ],
)
def test_pages_on_stdout_and_in_a_file(video, clip: Path, tmp_path: Path, format, begins) -> None:  # type: ignore[no-untyped-def]
    shown = video(clip, "-f", format, "--no-summary").out
    assert shown.startswith(begins)
    out = tmp_path / f"out.{format}"
    assert video(clip, "--no-summary", "-o", out).out == ""  # the ending names the format
    assert out.read_text() == shown
    if format == "html":
        assert shown.count("data:image/jpeg") == 6


def test_several_films_and_bad_ones(video, clip: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    bad, song = tmp_path / "bad.mp4", tmp_path / "song.mp3"
    bad.write_text("no film")
    song.write_bytes(films.song())
    done = video(bad, clip, song, "-f", "jsonl", "--no-summary")
    records = [json.loads(line) for line in done.out.splitlines()]
    assert done.code == 1
    assert ["error" in record for record in records] == [True, False, True]
    assert records[2]["error"]["message"] == f"{song}: no video stream"
    assert done.err.splitlines() == [f"argus: {r['error']['message']}" for r in records[::2]]

    text = video(bad, clip, "--no-summary").out
    assert text.splitlines()[0] == str(bad) and str(clip) in text
    assert "error" in video(bad, clip, "-f", "jsonl", "--fail-fast").out.splitlines()[-1]


def test_several_pages_need_a_folder(video, clip: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    other = tmp_path / "other.mkv"
    other.write_bytes(films.film([0.0, 1.0], "matroska/mpeg4"))
    assert video(clip, other, "-f", "srt").code == 2
    done = video(clip, other, "-f", "srt", "--no-summary", "-o", tmp_path / "subs")
    assert done.code == 0
    assert sorted(p.name for p in (tmp_path / "subs").iterdir()) == ["clip.srt", "other.srt"]
    twin = tmp_path / "twin" / "clip.mp4"
    twin.parent.mkdir()
    twin.write_bytes(clip.read_bytes())
    done = video(clip, twin, "-f", "srt", "-o", tmp_path / "subs")
    assert done.code == 2 and "two films would write the same files" in done.err


def test_frames_dir_holds_what_the_model_saw(video, clip: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "frames"
    video(clip, "--max-frames", 3, "--no-summary", "--frames-dir", folder)
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 3 and names[0] == "clip-00000.000.jpg"


def test_start_and_end(video, clip: Path) -> None:  # type: ignore[no-untyped-def]
    record = json.loads(video(clip, "-f", "json", "--start", 2, "--end", 4, "--no-summary").out)
    assert [frame["time"] for frame in record["frames"]] == [2, 3]
    assert (record["segments"][0]["start"], record["segments"][-1]["end"]) == (2, 4)
    done = video(clip, "--start", 100)
    assert done.code == 1 and "nothing lies between --start 100 s" in done.err


def test_one_frame_is_a_film(video, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "one.mp4"
    path.write_bytes(films.film([0.0]))
    record = json.loads(video(path, "-f", "json").out)
    assert len(record["frames"]) == len(record["segments"]) == 1


def test_still_film_is_looked_at_once(video, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "still.mp4"
    path.write_bytes(films.film([0.0, 1.0, 2.0, 3.0], pictures=[films.plain(90)] * 4))
    done = video(path, "-f", "json", "-v")
    assert json.loads(done.out)["frames_reused"] == 3
    assert "4 frames, 3 of them like the one before" in done.err


def test_missing_film_is_a_usage_error(video, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    done = video(tmp_path / "nope.mp4")
    assert done.code == 2 and done.err == f"argus: {tmp_path / 'nope.mp4'}: no such file\n"


def test_progress_on_a_terminal(clip: Path, tiny_folder: Path) -> None:
    """The bar, which is off everywhere else, on a real pseudo-terminal."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    words = [
        sys.executable,
        "-m",
        "argus_cli",
        "video",
        clip,
        "-m",
        tiny_folder,
        "--dtype",
        "float32",
    ]
    done = subprocess.Popen(
        [*words, "--end", "2.5", "--max-new-tokens", "2"], stdout=slave, stderr=slave
    )
    os.close(slave)
    shown = b""
    with suppress(OSError):  # the end of the terminal
        while part := os.read(master, 4096):
            shown += part
    assert done.wait(100) == 0
    assert b"of 2 s of film" in shown and b"[00:00-00:0" in shown and b"error" not in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--window", "inf"], "not a finite number"),
        (["--fps", "nan"], "--fps"),
        (["--stop", ""], "would end every answer"),
        (["--start", "4", "--end", "3"], "--end 3 doesn't come after --start 4"),
        (["-f", "srt", "-o", "/proc/no/such.srt"], "--output /proc/no/such.srt"),
        (["--frames-dir", "/proc/frames"], "--frames-dir /proc/frames: "),
    ],
)
def test_nonsense_is_refused_before_any_model(video, clip: Path, words, message) -> None:  # type: ignore[no-untyped-def]
    done = video(clip, *words)
    assert done.code == 2 and message in done.err


MARKED = ["json", "jsonl", "vtt", "html"]


@pytest.mark.parametrize("format", [*MARKED, "srt", "tsv"])
def test_a_file_that_is_not_known_as_ours_stays(video, clip: Path, tmp_path: Path, format) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / f"out.{format}"
    out.write_text('{"shopping": "list"}')
    done = video(clip, "--no-summary", "-o", out)
    assert done.code == 2
    assert done.err.startswith(f"argus: --output {out}: is there already")
    assert done.err.endswith("name another file, or --overwrite replaces it\n")
    assert out.read_text() == '{"shopping": "list"}'
    assert video(clip, "--no-summary", "-o", out, "--overwrite").code == 0
    assert "shopping" not in out.read_text()
    again = 0 if format in MARKED else 2
    assert video(clip, "--no-summary", "-o", out).code == again


def test_pages_of_a_folder_stay_likewise(video, clip: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page = tmp_path / "clip.srt"
    page.write_text("corrected by hand")
    done = video(clip, "-f", "srt", "-o", tmp_path)
    assert done.code == 2 and f"--output {page}: is there already" in done.err
    assert page.read_text() == "corrected by hand"


def test_interrupted_before_the_first_record_it_leaves_the_last_ones(  # type: ignore[no-untyped-def]
    video, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, other = tmp_path / "out.json", tmp_path / "other.mp4"
    other.write_bytes(clip.read_bytes())
    assert video(clip, other, "--no-summary", "-o", out).code == 0
    before = out.read_text()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("argus_cli.cli.screening.Screening._watch", interrupt)
    assert video(clip, other, "--no-summary", "-o", out).code == 130
    assert out.read_text() == before


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("format", ["json", "html", "srt"])
def test_a_document_that_finds_no_room_is_not_lost(  # type: ignore[no-untyped-def]
    video, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = video(clip, "-f", format, "--no-summary", "-o", "/dev/full")
    assert done.code == 1 and done.err.startswith("argus: --output /dev/full: No space left")
    assert Path(done.err.strip().rpartition(" is in ")[2]).stat().st_size > 20


def test_without_a_time_limit_the_others_hold(  # type: ignore[no-untyped-def]
    video,
    clip: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)  # and afterwards as it was, which -q changes
    other = tmp_path / "other.mp4"
    other.write_bytes(clip.read_bytes())
    words = ("-f", "json", "--no-summary", "--max-frames", 3, "--timeout", 0)
    monkeypatch.setattr("argus_cli.film_reader._ask_worker", None)  # nothing is read in a worker
    done = video(clip, other, *words)
    assert [len(record["frames"]) for record in json.loads(done.out)] == [3, 3]
    assert done.err.count("--timeout 0: inputs are read in this process") == 1
    assert video(clip, *words, "-q").err == ""

    monkeypatch.setattr("argus_cli.media.containers.DEFAULT_MAX_PIXELS", 64 * 48 - 1)
    done = video(clip, *words)
    assert done.code == 1 and f"{clip}: not one frame of it decodes" in done.err


def test_a_film_cut_short_is_a_film_and_a_warning(  # type: ignore[no-untyped-def]
    video, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cut.mkv"
    whole = films.film([float(second) for second in range(20)], "matroska/libx264", gop=2)
    path.write_bytes(whole[: len(whole) // 2])
    done = video(path, "-f", "json", "--no-summary")
    ends = json.loads(done.out)["duration"]
    said = f"{path}: cut short: ends at {ends:.2f} s, not at 19.04 s as its header has it"
    assert done.code == 0 and caplog.messages == [said]


def test_a_name_cannot_steer_the_terminal(video, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "\x1b]0;title\x07bad\u202e.mp4"
    path.write_text("no film")
    done = video(path)
    assert done.code == 1 and "bad" in done.err
    assert not {"\x1b", "\x07", "\u202e"} & set(done.err + done.out)


def test_system_turn_counts_for_the_context(video, clip: Path) -> None:  # type: ignore[no-untyped-def]
    done = video(clip, "--system", "x" * 600)
    assert done.code == 1 and "the prompt takes" in done.err and done.out == ""


def test_a_pipe_is_a_film(video, clip: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    pipe = tmp_path / "pipe.mp4"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(clip.read_bytes()))
    writer.start()
    done = video(pipe, "--no-summary")
    writer.join()
    assert done.code == 0 and done.out.startswith("[00:00-00:0")


def test_a_file_as_stdin_is_a_film(  # type: ignore[no-untyped-def]
    video, clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.dup(0)
    try:
        with clip.open("rb") as file:
            os.dup2(file.fileno(), 0)  # the number that it has for the worker too
        with open(0, closefd=False) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            done = video("-", "--no-summary")
    finally:
        os.dup2(before, 0)
        os.close(before)
    assert done.code == 0 and done.out.startswith("[00:00-00:0"), done.err
