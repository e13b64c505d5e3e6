"""`argus caption` as a user runs it: a real process, its stdout, stderr and exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import draw

import argus_cli
from argus_cli.output.records import printable


def argus(*words: object, stdin: bytes | None = None, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "argus_cli", *map(str, words)],
        input=stdin,
        capture_output=True,
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"} | env,
        timeout=100,
    )


@pytest.fixture
def caption(tiny_folder: Path):  # type: ignore[no-untyped-def]
    def run(*words: object, **more: object) -> subprocess.CompletedProcess:
        options = ("-m", tiny_folder, "--max-new-tokens", 6, "--dtype", "float32")
        return argus("caption", *words, *options, **more)

    return run


def test_one_picture_prints_its_caption_alone(caption, photo: Path, tiny_folder: Path) -> None:
    done = caption(photo)
    expected = argus_cli.load(tiny_folder, dtype="float32").caption(
        photo, sampling=argus_cli.Sampling(6)
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == printable(expected.caption) + "\n"


def test_stdin_bytes_and_path_give_the_same(caption, photo: Path) -> None:
    by_path = json.loads(caption(photo, "-f", "json").stdout)
    by_stdin = json.loads(caption("-", "-f", "json", stdin=photo.read_bytes()).stdout)
    assert by_stdin.pop("path") == "<stdin>" and by_path.pop("path") == str(photo)
    stamp = photo.stat()
    assert (by_path["bytes"], by_path["mtime_ns"]) == (stamp.st_size, stamp.st_mtime_ns)
    no_file = {"seconds": 0, "bytes": None, "mtime_ns": None}  # nothing to tell changes by
    assert by_stdin | {"seconds": 0} == by_path | no_file


def test_record_says_what_was_done(caption, photo: Path, tiny_folder: Path) -> None:
    record = json.loads(caption(photo, "-f", "json").stdout)
    assert sorted(record.pop("seconds")) == [
        "decode",
        "generate",
        "prefill",
        "preprocess",
        "vision",
    ]
    assert record.pop("caption") and record.pop("confidence") < 0
    assert record == {
        "schema": 1, "path": str(photo), "width": 90, "height": 60, "tiles": 13, "grid": [3, 4],
        "image_tokens": 52, "prompt_tokens": record["prompt_tokens"], "new_tokens": 6,
        "finish_reason": "length", "model": tiny_folder.name, "revision": "local",
        "dtype": "float32", "device": "cpu", "style": "caption",
        "prompt": "Describe this image in one sentence.", "seed": None,
        "bytes": photo.stat().st_size, "mtime_ns": photo.stat().st_mtime_ns,
    }  # fmt: skip


def test_bad_inputs_cost_their_own_record(caption, photo: Path, tmp_path: Path) -> None:
    page, cut, empty = tmp_path / "page.jpg", tmp_path / "cut.jpg", tmp_path / "empty.png"
    page.write_text("<html>")
    cut.write_bytes(photo.read_bytes()[:-400])
    empty.touch()
    done = caption(page, photo, cut, empty, "-f", "jsonl")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert [Path(record["path"]).name for record in records] == [
        "page.jpg", "photo.jpg", "cut.jpg", "empty.png",
    ]  # fmt: skip
    assert [record.get("error", {}).get("type") for record in records] == [
        "ImageError", None, "ImageError", "ImageError",
    ]  # fmt: skip
    errors = done.stderr.decode().splitlines()
    assert len(errors) == 4 and errors[-1] == "argus: 3 of 4 failed"
    for line, name in zip(errors, ("page.jpg", "cut.jpg", "empty.png"), strict=False):
        assert name in line and "Traceback" not in line


def test_fail_fast_stops_at_the_first(caption, photo: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_text("no picture")
    done = caption(bad, photo, "--fail-fast", "-f", "jsonl")
    assert done.returncode == 1 and len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nope.jpg"], "nope.jpg: no such file"),
        (["empty"], "empty: no pictures in it"),
        ([], "nothing to caption"),
        (["nope.jpg", "--prompt", "{size}"], "nope.jpg: no such file"),
        (["photo.jpg", "--prompt", "{size}"], "--prompt: {size} is no placeholder"),
        (["photo.jpg", "--append", "--overwrite"], "--append and --overwrite: choose one"),
        (["photo.jpg", "--prepend"], "--prepend: needs --sidecar EXT"),
        (["photo.jpg", "--jsonl-schema", "kohya"], "--jsonl-schema kohya: needs -f jsonl"),
        (["photo.jpg", "--shard", "3/2"], "3/2"),
        (["photo.jpg", "--sidecar", "jpg"], "is a picture itself"),
        (["-", "-"], "- can be given once"),
        (["nope.jpg", "--tiles", "0"], "not full, auto or a number"),
        (["nope.jpg", "--device", "tpu"], "'tpu'"),
    ],
)
def test_usage_errors_come_before_any_model(
    words: list[str], message: str, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photo.parent / "empty").mkdir()
    monkeypatch.chdir(photo.parent)
    done = argus("caption", *words, "-m", "./no-such-model", stdin=b"")
    assert done.returncode == 2 and done.stdout == b""
    assert message in done.stderr.decode() and "no-such-model" not in done.stderr.decode()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("./no-such-model", "no-such-model: no such folder"),
        ("smolvlm-25", "did you mean smolvlm-256m?"),
        ("smolvlm-256m", "smolvlm-256m"),
    ],
)
def test_a_model_that_is_not_there(photo: Path, model: str, message: str) -> None:
    done = argus("caption", photo, "-m", model, "--offline")
    assert done.returncode == 3 and done.stdout == b""
    assert message in done.stderr.decode() and len(done.stderr.splitlines()) == 1


def test_damaged_model_is_named(tiny_folder: Path, photo: Path, tmp_path: Path) -> None:
    for file in tiny_folder.iterdir():
        (tmp_path / file.name).write_bytes(
            file.read_bytes()[: 5000 if "safe" in file.name else None]
        )
    done = argus("caption", photo, "-m", tmp_path)
    assert done.returncode == 3
    assert b"model.safetensors: damaged or truncated" in done.stderr


def test_prompt_longer_than_the_context(caption, photo: Path) -> None:
    done = caption(photo, "--prompt", "x" * 600)
    assert done.returncode == 1
    assert b"photo.jpg: the prompt takes" in done.stderr and b"room for 512" in done.stderr


def test_several_texts_carry_their_path(caption, photo: Path, tmp_path: Path) -> None:
    second = tmp_path / "second picture.png"
    draw(20, 20).save(second)
    lines = caption(photo, second).stdout.decode().splitlines()
    assert [line.split("\t")[0] for line in lines] == [str(photo), str(second)]


def test_json_output_is_one_document_however_often(caption, photo: Path, tmp_path: Path) -> None:
    out, second = tmp_path / "out.json", tmp_path / "second.png"
    draw(20, 20).save(second)
    for _ in range(2):
        caption(photo, second, "-f", "json", "-o", out)
        assert len(json.loads(out.read_text())) == 2


@pytest.mark.parametrize("format", ["json", "text", "jsonl"])
def test_a_run_that_never_starts_leaves_the_old_output(
    photo: Path, tmp_path: Path, format: str
) -> None:
    out = tmp_path / "out"
    out.write_text('{"schema": 1, "path": "a", "caption": "A dog."}\n')
    words = ("-f", format, "-o", out, "--overwrite", "-m", "./no-such-model")
    done = argus("caption", photo.parent, *words)
    assert done.returncode == 3
    assert json.loads(out.read_text())["path"] == "a"


def test_a_name_cannot_steer_the_terminal(caption, tmp_path: Path) -> None:
    path = tmp_path / "\x1b[2Jbad.jpg"
    path.write_text("no picture")
    done = caption(path, "-v")
    assert done.returncode == 1 and b"bad.jpg" in done.stderr and b"\x1b" not in done.stderr


def test_seed_repeats_and_temperature_records_one(caption, photo: Path) -> None:
    def run(*more: object) -> dict:
        return json.loads(caption(photo, "-f", "json", "--temperature", 1.5, *more).stdout)

    first, again = run("--seed", 5), run("--seed", 5)
    assert first["caption"] == again["caption"] and first["seed"] == 5
    picked = run()
    assert picked["seed"] is not None
    assert run("--seed", picked["seed"])["caption"] == picked["caption"]


@pytest.mark.parametrize(("tiles", "expected"), [("full", 13), ("auto", 5), ("1", 1), ("6", 5)])
def test_tiles(caption, photo: Path, tiles: str, expected: int) -> None:
    record = json.loads(caption(photo, "-f", "json", "--tiles", tiles).stdout)
    assert record["tiles"] == expected


def test_verbose_shows_the_phases_on_stderr(caption, photo: Path) -> None:
    done = caption(photo, "-v")
    for word in ("loaded in", "13 tiles", "decode", "preprocess", "vision", "prefill", "tokens/s"):
        assert word in done.stderr.decode()
    assert "tiles" not in done.stdout.decode()


def test_a_closed_pipe_is_quiet(tiny_folder: Path, photo: Path) -> None:
    command = f"{sys.executable} -m argus_cli caption {photo} {photo} -m {tiny_folder} | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=100)
    assert b"Traceback" not in done.stderr and b"internal error" not in done.stderr


def test_file_name_that_is_no_utf8(caption, photo: Path, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/caf\xe9\n.jpg"
    with open(odd, "wb") as file:
        file.write(photo.read_bytes())
    done = caption(os.fsdecode(odd), "-f", "jsonl")
    assert done.returncode == 0
    record = json.loads(done.stdout)  # valid UTF-8 and valid JSON
    assert record["path"].endswith("caf\udce9\n.jpg")
    done = caption(os.fsdecode(odd), photo, LC_ALL="en_US.ISO-8859-1")
    assert done.returncode == 0
    assert "caf\\udce9 .jpg\t" in done.stdout.decode()  # as in JSON; the line break made harmless


def test_version_and_module_run() -> None:
    done = argus("--version")
    assert done.returncode == 0 and done.stdout.startswith(b"argus 0.")


@pytest.mark.parametrize("command", ["caption", "video"])
@pytest.mark.parametrize("name", ["photo.jpg", "holiday.mp4"])
def test_no_picture_or_film_is_ever_written_to(command: str, name: str, photo: Path) -> None:
    out = photo.parent / name
    out.write_bytes(photo.read_bytes())
    done = argus(command, photo, "-m", "./no-such-model", "-o", out)
    assert done.returncode == 2 and b"has the name of a picture or film" in done.stderr
    assert out.read_bytes() == photo.read_bytes()
