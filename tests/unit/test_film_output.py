"""Subtitles that players and an independent parser read, and a page that nothing breaks out of."""

import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import av
import pytest

from argus_cli.errors import ArgusError, ExitCode, UsageError
from argus_cli.output.files import (
    check_folder,
    check_writable,
    deliver,
    open_output,
    write_whole,
)
from argus_cli.output.films import PageFilms
from argus_cli.output.storyboard import to_html
from argus_cli.output.subtitles import SUBTITLES, to_srt, to_tsv, to_vtt
from argus_cli.schema import Failure, Frame, Segment, VideoCaption, VideoTimings

HOSTILE = "a --> b ---> c\n\n<script>alert(1)</script> & \x1b[31m\u202e =x\ty"
FILM = VideoCaption(
    path="dir/<b>clip</b>.mp4", duration=3725.0, width=64, height=48,
    frames=(Frame(0.0, 0), Frame(3700.0, None)), frames_reused=0,
    segments=(
        Segment(0.0, 10.0, "A dog runs.", -0.5), Segment(10.0, 3700.0004, HOSTILE, -0.5),
        Segment(3700.0004, 3725.0, "Two cats.", -0.5),
    ),
    summary="Dogs & <cats>", model="tiny", revision="local", dtype="float32", device="cpu",
    prompt="What --> is\n\nthis?", seed=None, seconds=VideoTimings(0, 0, 0),
)  # fmt: skip
TIME = r"(\d+):(\d\d):(\d\d)[.,](\d{3})"


def seconds(text: str) -> float:
    hours, minutes, rest, ms = map(int, re.fullmatch(TIME, text).groups())  # type: ignore[union-attr]
    return hours * 3600 + minutes * 60 + rest + ms / 1000


def cues(text: str) -> list[tuple[float, float, str]]:
    """A strict reader of SRT and VTT blocks, written from the formats' descriptions."""
    found = []
    for block in text.strip().split("\n\n"):
        lines = block.split("\n")
        if lines[0].isdigit():
            lines.pop(0)
        if "-->" not in lines[0]:
            continue
        start, end = lines[0].split(" --> ")
        assert lines[1:] and all(lines[1:])
        found.append((seconds(start), seconds(end), "\n".join(lines[1:])))
    return found


@pytest.mark.parametrize("render", [to_srt, to_vtt])
def test_cues_rise_and_cannot_be_broken(render) -> None:  # type: ignore[no-untyped-def]
    text = render(FILM)
    found = cues(text)
    assert [(start, end) for start, end, _ in found] == [(0, 10), (10, 3700), (3700, 3725)]
    assert text.count("-->") == 3
    assert not set("\x1b\u202e\t") & set(text)
    assert found[0][2] == "A dog runs."


def test_srt_numbers_from_one() -> None:
    assert to_srt(FILM).startswith("1\n00:00:00,000 --> 00:00:10,000\nA dog runs.\n\n2\n")


def test_nothing_in_srt_is_markup() -> None:
    film = replace(FILM, segments=(Segment(0, 1, r"<font size=99>a{\an8}b</b> 1 < 2 {x} c<", 0),))
    assert cues(to_srt(film)) == [(0, 1, r"< font size=99>a{ \an8}b< /b> 1 < 2 { x} c<")]


def test_vtt_header_note_and_escapes() -> None:
    text = to_vtt(FILM)
    assert text.startswith("WEBVTT\n\nNOTE made by argus with tiny local float32, prompt: ")
    assert "&lt;script&gt;" in text and " &amp; " in text and "<script" not in text


def test_tsv_has_three_columns() -> None:
    rows = [line.split("\t") for line in to_tsv(FILM).splitlines()]
    assert rows[0] == ["start", "end", "text"]
    assert all(len(row) == 3 for row in rows)
    assert rows[1][:2] == ["0", "10000"]


def test_a_film_of_one_frame_has_a_cue_with_length() -> None:
    still = replace(FILM, duration=0.0, segments=(Segment(0.0, 0.0, "A dog.", 0.0),))
    assert cues(to_srt(still)) == [(0.0, 0.5, "A dog.")]


def test_empty_captions_make_no_cue() -> None:
    silent = replace(FILM, segments=(Segment(0.0, 5.0, " \n", 0.0), *FILM.segments[:1]))
    assert len(cues(to_srt(silent))) == 1


class Reader(HTMLParser):
    """Collects tags, text and what the page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page_is_self_contained_and_escaped() -> None:
    page = Reader()
    page.feed(to_html(FILM, {0.0: b"jpeg", 3700.0: b"jpeg2"}))
    late = Reader()
    late.feed(to_html(FILM, {-0.02: b"on screen at the start"}))
    assert late.tags.count("img") == 1
    assert page.tags.count("img") == 2 and page.tags.count("li") == 3
    assert "script" not in page.tags and "b" not in page.tags
    assert all(source.startswith("data:image/jpeg;base64,") for source in page.sources)
    for shown in ("A dog runs.", "Dogs & <cats>", "00:10-1:01:40", "1:02:05", "tiny"):
        assert shown in page.text


def test_pages_into_a_folder_and_whole_or_not_at_all(tmp_path: Path) -> None:
    writer = PageFilms("srt", tmp_path / "out", several=True)
    writer.write(replace(FILM, path="a/one.mp4"), {})
    writer.write(Failure("two.mp4", "VideoError", "x"), {})
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["one.srt"]
    assert (tmp_path / "out/one.srt").read_text() == SUBTITLES["srt"](FILM)

    (tmp_path / "ours").write_text("precious")
    (tmp_path / "out/three.srt").symlink_to(tmp_path / "ours")
    writer.write(replace(FILM, path="three.mp4"), {})
    assert (tmp_path / "ours").read_text() == "precious"
    assert (tmp_path / "out/three.srt").read_text() == SUBTITLES["srt"](FILM)

    (tmp_path / "folder.srt").mkdir()
    with pytest.raises(ArgusError, match="--output"):
        write_whole(tmp_path / "folder.srt", "text")
    assert not list(tmp_path.glob(".*"))


def test_a_document_survives_what_ends_the_run_and_replaces_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), open_output(path, append=False) as stream:
        stream.write("half of it")
        raise KeyboardInterrupt
    assert path.read_text() == "half of it"


def test_links_stay_links_and_pipes_are_written_into(tmp_path: Path) -> None:
    real, link, pipe = tmp_path / "real.srt", tmp_path / "link.srt", tmp_path / "pipe"
    link.symlink_to(real)
    write_whole(link, "text")
    assert link.is_symlink() and real.read_text() == "text"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, "text")
    assert os.read(reader, 10) == b"text" and pipe.is_fifo()
    os.close(reader)


def test_what_cannot_be_written_is_told_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "below.srt"):
        with pytest.raises(UsageError, match="--output"):
            check_writable(path)
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/folder")):
        with pytest.raises(UsageError, match=f"^--frames-dir {path}: "):
            check_folder(path, "--frames-dir")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("append", [True, False])
def test_an_output_that_takes_no_more_is_named(append: bool) -> None:
    with (
        pytest.raises(ArgusError, match="^--output /dev/full: No space left") as caught,
        open_output(Path("/dev/full"), append=append) as stream,
    ):
        stream.write("text")
    assert caught.value.exit_code == ExitCode.SOME_FAILED


def test_what_cannot_be_written_in_the_end_is_kept_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "out.json").mkdir()
    with pytest.raises(ArgusError, match="; what it was to hold is in ") as caught:
        deliver(tmp_path / "out.json", "text")
    assert caught.value.exit_code == ExitCode.SOME_FAILED
    spare = Path(str(caught.value).rpartition(" is in ")[2])
    assert spare.read_text() == "text" and spare.suffix == ".json"
    assert spare.parent.stat().st_mode & 0o077 == 0

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(ArgusError, match="^--output .*; what it was to hold is lost$"):
        deliver(tmp_path / "out.json", "text")


@pytest.mark.parametrize("format", ["srt", "vtt"])
def test_ffmpeg_reads_the_same_cues(format: str, tmp_path: Path) -> None:
    path = tmp_path / f"film.{format}"
    path.write_text(SUBTITLES[format](FILM), encoding="utf-8")
    with av.open(path) as film:
        read = [
            (float(packet.pts * packet.time_base), float(packet.duration * packet.time_base))
            for packet in film.demux()
            if packet.size
        ]
    assert read == [(0.0, 10.0), (10.0, 3690.0), (3700.0, 25.0)]
