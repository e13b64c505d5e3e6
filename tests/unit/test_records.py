"""Results as lines and back: argus's own JSON lines, other tools', CSV."""

import csv
import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from conftest import draw

from argus_cli.errors import UsageError
from argus_cli.output.lines import LINES, CsvRows, Entry, ImageFolder, JsonLines, parse_record
from argus_cli.output.records import WRITERS, printable
from argus_cli.schema import Caption, Failure, Segment, Timings, VideoCaption, VideoTimings

DONE = Caption(
    path="a b.jpg", caption="A dog runs.", width=90, height=60, tiles=1, grid=(0, 0),
    image_tokens=64, prompt_tokens=80, new_tokens=4, finish_reason="stop", confidence=-0.25,
    model="tiny", revision="local", dtype="float32", device="cpu", style="", prompt="What is this?",
    seed=None, seconds=Timings(0.1, 0.2, 0.3, 0.4, 0.5), bytes=123,
    mtime_ns=1_700_000_000_000_000_001,
)  # fmt: skip
FAILED = Failure("bad.jpg", "ImageError", "bad.jpg: no picture", 7, 8)
FILM = VideoCaption(
    path="film.mp4", duration=3.0, width=64, height=48, frames=(), frames_reused=0,
    segments=(Segment(0.0, 3.0, "A dog.", -0.5),), summary=None, model="tiny", revision="local",
    dtype="float32", device="cpu", prompt="?", seed=None, seconds=VideoTimings(0, 0, 0),
)  # fmt: skip
HOSTILE = [
    "\uff1d1", "\uff20x", "'\uff0b1",
    "=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "\nx", "'=1", "''=1", "'tis", 'say "a, b"',
    "two\nlines\r\nof text", "", " ", "Grüße, 世界 🐕", "trailing\n", ",,,", '"', "nul\0",
]  # fmt: skip


@pytest.mark.parametrize("lines", [JsonLines(), CsvRows()])
@pytest.mark.parametrize("text", [*HOSTILE, "odd bytes \udcff", "\\udcff", "\\\udcff"])
def test_any_path_and_prompt_reads_back_as_it_was(lines: JsonLines, text: str) -> None:
    row = lines.line(replace(DONE, path=text, prompt=text))
    assert lines.read(row.encode().decode()) == Entry(
        text, DONE.bytes, DONE.mtime_ns, ("tiny", "local", "", text)
    )


@pytest.mark.parametrize("format", ["text", "csv", "jsonl", "json"])
def test_an_odd_name_is_valid_utf8_in_every_format(format: str) -> None:
    stream = StringIO()
    writer = WRITERS[format](stream, True)
    for result in (
        replace(DONE, path="caf\udce9.jpg"),
        replace(FAILED, message="caf\udce9.jpg: no"),
    ):
        writer.write(result)
    writer.close()
    assert b"caf\\udce9.jpg" in stream.getvalue().encode()


def test_a_csv_of_another_locale_or_an_older_argus_is_found_again() -> None:
    lines = CsvRows()
    row = str(lines.line(replace(DONE, path="caf\udcc3\udca9.jpg")))
    assert lines.read(row) and lines.read(row).path == lines.key("café.jpg")  # type: ignore[union-attr]
    raw = row.replace("café.jpg", "caf\udce9.jpg")
    assert lines.read(raw).path == lines.key("caf\udce9.jpg")  # type: ignore[union-attr]


@pytest.mark.parametrize("lines", [JsonLines(), CsvRows()])
def test_a_failure_reads_back_as_made_by_nobody(lines: JsonLines) -> None:
    assert lines.read(lines.line(FAILED)) == Entry("bad.jpg", 7, 8, None)


def test_csv_columns_and_line_ends() -> None:
    stream = StringIO()
    writer = WRITERS["csv"](stream, True)
    for result in (DONE, FAILED):
        writer.write(result)
    writer.close()
    text = stream.getvalue()
    assert text.count("\r\n") == 3 and not text.startswith("\ufeff")
    good, bad = csv.DictReader(StringIO(text, newline=""))
    assert good | {"path": "a b.jpg", "caption": "A dog runs.", "error": "", "width": "90"} == good
    assert (good["confidence"], good["seconds"]) == ("-0.25", "1.5")
    assert (good["mtime_ns"], good["seed"]) == ("1700000000000000001", "")
    assert (bad["path"], bad["caption"]) == ("bad.jpg", "")
    assert bad["error"] == "ImageError: bad.jpg: no picture"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "\uff1d1"])
def test_no_spreadsheet_takes_a_csv_cell_for_a_formula(text: str) -> None:
    row = next(csv.reader([CsvRows().line(replace(DONE, path=text, caption=text))]))
    assert row[:2] == [f"'{text}"] * 2


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "1", "null", '{"schema": 1, "path": "a"}', '{"path": "a", "caption": "b"}',
        '{"schema": 2, "path": "a", "caption": "b"}', '{"schema": 1, "path": 1, "caption": "b"}',
        '{"schema": 1, "path": "a", "caption": null}', "[" * 100_000,
        '{"schema": 1, "path": "a", "caption": "b", "error": {}}',
        '{"schema": 1, "path": "a", "caption": null, "segments": []}',
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_record(text)


def test_kohya_has_absolute_paths_and_sizes(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    lines = LINES["kohya"](Path("out.jsonl"))
    assert json.loads(lines.line(DONE)) == {
        "image_path": str(tmp_path / "a b.jpg"), "caption": "A dog runs.", "image_size": [90, 60],
    }  # fmt: skip


@pytest.mark.parametrize("schema", ["imagefolder", "kohya"])
def test_other_tools_get_captions_alone(schema: str) -> None:
    lines = LINES[schema](Path("metadata.jsonl"))
    assert lines.line(FAILED) is None and lines.line(FILM) is None
    assert lines.read(lines.line(DONE)) == Entry(lines.key(DONE.path))


def test_imagefolder_refuses_what_datasets_would_not_find(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"e\.g\. pics/metadata\.jsonl"):
        ImageFolder(Path("pics/out.jsonl"))
    with pytest.raises(UsageError, match="below the output's folder"):
        ImageFolder(tmp_path / "metadata.jsonl").key(str(tmp_path.parent / "a.jpg"))


def test_datasets_reads_imagefolder(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    lines = LINES["imagefolder"](tmp_path / "metadata.jsonl")
    captions = {"a.jpg": 'A "dog",\nrunning.', "below/ä 1.png": "=Zwei Katzen 🐈"}
    rows = []
    for name, caption in captions.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        draw(40, 30).save(tmp_path / name)
        rows.append(lines.line(replace(DONE, path=str(tmp_path / name), caption=caption)))
    (tmp_path / "bad.jpg").write_text("no picture")  # failed, so it has no row
    (tmp_path / "metadata.jsonl").write_text("".join(rows), encoding="utf-8")
    read = datasets.load_dataset(
        "imagefolder", data_dir=str(tmp_path), split="train", cache_dir=str(tmp_path / ".cache")
    )
    shown = {row["text"]: row["image"].size for row in read}
    assert shown == dict.fromkeys(captions.values(), (40, 30))


STEERING = [
    "\x1b]0;x\x07", "\0", "\t", "\n", "\r", "\x7f", "\x9b31m", "\u061c", "\u200b", "\u200e",
    "\u200f", "\u2028", "\u2029", "\u202a", "\u202e", "\u2066", "\u2069", "\ufeff",
]  # fmt: skip
# The same as a system without UTF-8 hands them over, and what another encoding takes for one.
BYTES = [b"\xc2\x9b31m", b"\xe2\x80\xae", b"\x9b31m", b"\x80"]
FOREIGN = [raw.decode("ascii", "surrogateescape") for raw in BYTES]


@pytest.mark.parametrize("text", [*STEERING, *FOREIGN], ids=ascii)
def test_printable_text_is_one_line_that_steers_nothing(text: str) -> None:
    shown = printable(f"a{text}b")
    assert shown.startswith("a ") and shown.endswith("b") and len(shown.splitlines()) == 1
    raw = shown.encode("utf-8", "surrogateescape")
    assert raw.decode("latin-1").isprintable() or not raw.isascii()
    assert not any(odd in shown for odd in STEERING) and b"\x9b" not in raw and b"\x80" not in raw


@pytest.mark.parametrize("raw", [b"caf\xc3\xa9", "世界 🐕".encode(), b"caf\xe9", b"\xff\xfe"])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_other_bytes_of_a_file_name_come_out_as_they_are_on_disk(raw: bytes, encoding: str) -> None:
    shown = printable(raw.decode(encoding, "surrogateescape"))
    assert shown.encode("utf-8", "surrogateescape") == raw


def test_a_surrogate_of_no_byte_can_be_printed() -> None:
    assert printable("a\ud800\udc00b\udfff") == "a\ufffd\ufffdb\ufffd"


@pytest.mark.parametrize("text", [*STEERING, "\ud800"], ids=ascii)
@pytest.mark.parametrize("format", ["json", "jsonl"])
def test_json_steers_no_terminal_and_reads_back(format: str, text: str) -> None:
    stream = StringIO()
    writer = WRITERS[format](stream, False)
    writer.write(replace(DONE, caption=text))
    writer.close()
    shown = stream.getvalue()
    assert json.loads(shown)["caption"] == text
    assert all(c == "\n" or c.isprintable() for c in shown if c not in "\u200b")
    assert len(shown.splitlines()) == shown.count("\n")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("text", STEERING, ids=ascii)
def test_csv_is_neutral_on_a_terminal_and_whole_in_a_file(text: str) -> None:
    for stream in (Terminal(), StringIO()):
        WRITERS["csv"](stream, True).write(replace(DONE, path=f"a{text}b"))
        steers = any(odd in stream.getvalue() for odd in STEERING if odd not in "\r\n")
        assert steers is (not stream.isatty() and text not in "\r\n")
