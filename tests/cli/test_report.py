"""`argus report` as a user runs it."""

import base64
import json
import os
import re
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
from conftest import draw
from PIL import Image


def report(*words: object, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "argus_cli", "report", *map(str, words)],
        capture_output=True, text=True, cwd=cwd, timeout=100,
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"},
    )  # fmt: skip


def save_results(path: Path, *names: str | Path, more: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    records = ({"schema": 1, "path": str(name), "caption": f"of {name!s}"} for name in names)
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + more)
    return path


def sources(page: Path) -> list[str]:
    return re.findall('<img[^>]* src="([^"]+)"', page.read_text())


@pytest.mark.parametrize("name", ["a b.jpg", "100%#1?.jpg", "x:y&<'\".jpg", "odd \udcff.jpg"])
def test_pictures_are_found_from_the_page_whatever_their_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "pics").mkdir()
    draw(40, 30).save(tmp_path / "pics" / name, "JPEG")
    save_results(tmp_path / "out.jsonl", f"pics/{name}")
    done = report("out.jsonl", "-o", "pages/deep/page.html", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (source,) = sources(tmp_path / "pages/deep/page.html")
    assert re.fullmatch(r"\.\./\.\./pics/[\w%.-]+", source)
    assert os.fsdecode(unquote_to_bytes(source)) == f"../../pics/{name}"


def test_pictures_beside_the_records_are_found_from_elsewhere(tmp_path: Path) -> None:
    draw(40, 30).save(tmp_path / "a.jpg")
    save_results(tmp_path / "out.jsonl", "a.jpg", "gone.jpg")
    (tmp_path / "elsewhere").mkdir()
    assert report("../out.jsonl", cwd=tmp_path / "elsewhere").returncode == 0
    assert sources(tmp_path / "out.html") == ["a.jpg"]


def test_embedded_pictures_are_small_and_inside_the_page(tmp_path: Path) -> None:
    draw(2000, 1000).save(tmp_path / "a.tiff")
    (tmp_path / "bad.jpg").write_text("no picture")
    save_results(tmp_path / "out.jsonl", tmp_path / "a.tiff", tmp_path / "bad.jpg")
    assert report("out.jsonl", "--embed", cwd=tmp_path).returncode == 0
    (source,) = sources(tmp_path / "out.html")
    jpeg = Image.open(BytesIO(base64.b64decode(source.removeprefix("data:image/jpeg;base64,"))))
    assert jpeg.format == "JPEG" and jpeg.size == (480, 240)
    assert "no picture there" in (tmp_path / "out.html").read_text()


def test_broken_lines_are_named_and_the_page_is_written(tmp_path: Path) -> None:
    save_results(tmp_path / "out.jsonl", "a.jpg", more='\n{"schema": 1, "pa')
    done = report("out.jsonl", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "argus: out.jsonl: no records, not shown: line 3\n"
    assert "of a.jpg" in (tmp_path / "out.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nope.jsonl"], "nope.jsonl: No such file"),
        (["."], "is a directory"),
        (["photo.jpg"], "photo.jpg: holds no records of argus"),
        (["out.jsonl", "-o", "photo.jpg"], "--output photo.jpg: a page's name ends in .html"),
        (["out.jsonl", "-o", "photo.jpg/page.html"], "--output"),
    ],
)
def test_what_cannot_be_done_is_refused(words: list[str], message: str, photo: Path) -> None:
    before = photo.read_bytes()
    save_results(photo.parent / "out.jsonl", "a.jpg")
    done = report(*words, cwd=photo.parent)
    assert done.returncode == 2 and message.lower() in done.stderr.lower()
    assert photo.read_bytes() == before and not list(photo.parent.glob("*.html"))


def test_nothing_done_is_an_empty_page(tmp_path: Path) -> None:
    save_results(tmp_path / "out.jsonl")
    assert report("out.jsonl", cwd=tmp_path).returncode == 0
    assert "0 captioned" in (tmp_path / "out.html").read_text()
