"""`argus caption FOLDER`: what is written, what is skipped, and how a run can end and go on."""

import json
import os
import pty
import random
import resource
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import draw
from typer.testing import CliRunner, Result

from argus_cli.cli.app import app
from argus_cli.errors import ArgusError
from argus_cli.output.sidecars import one_line

Command = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve small pictures in two folders."""
    folder = tmp_path / "photos"
    (folder / "trip").mkdir(parents=True)
    for number in range(12):
        place = folder / "trip" if number % 3 == 2 else folder
        draw(40 + 5 * number, 30, seed=number).save(place / f"img{number}.png")
    return folder


def options(model: Path) -> list[str]:
    return ["-m", str(model), "--max-new-tokens", "6", "--dtype", "float32"]


@pytest.fixture
def caption(tiny_folder: Path) -> Command:
    def run(*words: object, code: int = 0, **more: object) -> Result:
        done = CliRunner().invoke(app, ["caption", *map(str, words), *options(tiny_folder)], **more)
        if isinstance(done.exception, ArgusError):  # main() makes its line and exit code of it
            assert done.exception.exit_code == code, done.exception
        else:
            assert done.exit_code == code, done.output
        return done

    return run


def start(tiny_folder: Path, *words: object, **more: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "argus_cli", "caption", *map(str, words)]
    return subprocess.Popen(
        [*command, *options(tiny_folder)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, **more
    )  # type: ignore[call-overload]


def records(path: Path) -> list[dict]:
    """The whole lines; one that a kill has torn is the next run's to drop."""
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def captions(path: Path) -> dict[str, str]:
    found = records(path)
    assert len({record["path"] for record in found}) == len(found)
    return {record["path"]: record["caption"] for record in found}


def test_a_folder_gives_one_record_a_picture_in_natural_order(caption, folder, tmp_path) -> None:
    out = tmp_path / "out.jsonl"
    caption(folder, "-f", "jsonl", "-o", out)
    numbers = [Path(r["path"]).stem for r in records(out) if "trip" not in r["path"]]
    assert numbers == ["img0", "img1", "img3", "img4", "img6", "img7", "img9", "img10"]
    assert len(records(out)) == 12


def test_the_same_command_again_does_nothing(caption, folder, tmp_path) -> None:
    out = tmp_path / "out.jsonl"
    caption(folder, "-f", "jsonl", "-o", out)
    before = out.read_bytes()
    done = caption(folder, "-f", "jsonl", "-o", out)
    assert "12 of 12 are done already" in done.stderr
    assert out.read_bytes() == before


def test_what_has_changed_is_done_anew(caption, folder, tmp_path) -> None:
    out = tmp_path / "out.csv"
    caption(folder, "-f", "csv", "-o", out)
    draw(64, 64, seed=99).save(folder / "img3.png")
    done = caption(folder, "-f", "csv", "-o", out)
    assert "1 to redo: the file has changed" in done.stderr
    assert len(out.read_text().splitlines()) == 13
    done = caption(folder, "-f", "csv", "-o", out, "--prompt", "Why?")
    assert "12 to redo: made by another model, style or prompt" in done.stderr
    assert len(out.read_text().splitlines()) == 13


def test_a_prompt_that_differs_by_picture_is_no_other_prompt(caption, folder, tmp_path) -> None:
    words = (folder, "-f", "jsonl", "-o", tmp_path / "out.jsonl", "--prompt", "What is {stem}?")
    caption(*words)
    assert {r["prompt"] for r in records(tmp_path / "out.jsonl")} >= {"What is img0?"}
    assert "12 of 12 are done already" in caption(*words).stderr


def test_failures_are_tried_again_on_demand(caption, folder, tmp_path) -> None:
    out, bad = tmp_path / "out.jsonl", folder / "bad.png"
    bad.write_text("no picture")
    done = caption(folder, "-f", "jsonl", "-o", out, code=1)
    assert f"{bad}: " in done.stderr and "1 of 13 failed" in done.stderr
    again = caption(folder, "-f", "jsonl", "-o", out, code=1)
    assert "1 failed before, --retry-failed tries them again" in again.stderr
    caption(folder, "-f", "jsonl", "-o", out, "--retry-failed", code=1)
    assert len(records(out)) == 13


def test_limit_takes_the_next_ones(caption, folder, tmp_path) -> None:
    out = tmp_path / "out.jsonl"
    for expected in (5, 10, 12):
        caption(folder, "-f", "jsonl", "-o", out, "--limit", 5)
        assert len(captions(out)) == expected


def test_shards_make_up_the_folder(caption, folder, tmp_path) -> None:
    parts = []
    for number in (1, 2, 3):
        out = tmp_path / f"{number}.jsonl"
        caption(folder, "-f", "jsonl", "-o", out, "--shard", f"{number}/3")
        parts += [record["path"] for record in records(out)] if out.exists() else []
    assert len(parts) == len(set(parts)) == 12


def test_dry_run_lists_and_touches_nothing(caption, folder, tmp_path) -> None:
    out = tmp_path / "out.jsonl"
    done = caption(folder, "-f", "jsonl", "-o", out, "--dry-run", "--no-recursive")
    assert len(done.stdout.splitlines()) == 8 and not out.exists()


def test_a_list_from_stdin(caption, folder) -> None:
    names = [str(folder / "img3.png"), str(folder / "img1.png"), str(folder / "img3.png")]
    done = caption("--from", "-", input="\n".join(names).encode())
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == names[:2]


def test_sick_files_cost_their_own_record(caption, folder, tmp_path, caplog) -> None:
    good = (folder / "img0.png").read_bytes()
    for name, data in {
        "empty.jpg": b"", "text.png": b"hello", "cut.png": good[: len(good) // 2],
        "page.jpg": b"<html></html>", "zeros.webp": bytes(1000), "film.gif": b"GIF89a",
        "tiff.tif": b"II*\0\xff\xff\xff\xff", "jpeg.jpg": b"\xff\xd8\xff\xe0" + bytes(64),
    }.items():  # fmt: skip
        (folder / name).write_bytes(data)
    (folder / "gone.jpg").symlink_to("nowhere")
    out = tmp_path / "out.jsonl"
    done = caption(folder, "-f", "jsonl", "-o", out, code=1)
    found = records(out)
    failed = {Path(r["path"]).name: r["error"]["message"] for r in found if "error" in r}
    assert len([r for r in found if "caption" in r]) == 12
    assert len(failed) == 8 and "8 of 20 failed" in done.stderr
    assert all(name in message for name, message in failed.items())
    assert "gone.jpg" in caplog.text


def test_sidecars_with_trigger_words(caption, folder) -> None:
    words = (folder, "--sidecar", "txt", "--prefix", "ohwx, ", "--suffix", " (film)")
    caption(*words)
    texts = {path.stem: path.read_text() for path in folder.rglob("*.txt")}
    assert len(texts) == 12
    assert all(t.startswith("ohwx, ") and t.endswith(" (film)\n") for t in texts.values())
    (folder / "img0.txt").write_text("mine\n")
    (folder / "img1.txt").unlink()
    done = caption(*words)
    assert "11 of 12 have a sidecar already" in done.stderr
    assert (folder / "img0.txt").read_text() == "mine\n"
    assert (folder / "img1.txt").read_text() == texts["img1"]


def test_a_sidecar_that_was_missing_is_made_though_the_record_is_there(
    caption, folder, tmp_path
) -> None:
    words = (folder, "--sidecar", "txt", "-f", "jsonl", "-o", tmp_path / "out.jsonl")
    caption(*words)
    before = captions(tmp_path / "out.jsonl")
    (folder / "img4.txt").unlink()
    caption(*words)
    assert captions(tmp_path / "out.jsonl") == before
    assert (folder / "img4.txt").read_text() == one_line(before[str(folder / "img4.png")]) + "\n"


def test_pictures_that_would_share_a_sidecar_are_refused_first(caption, folder) -> None:
    draw(40, 40).save(folder / "img0.jpg")
    done = caption(folder, "--sidecar", "txt", code=2)
    assert "--sidecar-full-name tells them apart" in str(done.exception)
    assert not list(folder.rglob("*.txt"))
    caption(folder, "--sidecar", "txt", "--sidecar-full-name")
    assert (folder / "img0.jpg.txt").exists() and (folder / "img0.png.txt").exists()


def test_a_sidecar_shared_with_another_shard_is_refused_too(caption, folder) -> None:
    draw(40, 40).save(folder / "img0.jpg")
    for number in (1, 2):
        caption(folder, "--sidecar", "txt", "--shard", f"{number}/2", code=2)
    assert not list(folder.rglob("*.txt"))


def test_a_sidecar_that_fails_costs_no_record(caption, folder, tmp_path) -> None:
    words = (folder, "--sidecar", "xmp", "-o", tmp_path / "out.jsonl")
    caption(*words)
    (folder / "img0.xmp").write_text("<no xml")
    done = caption(*words, code=1)
    assert "img0.xmp" in done.stderr and "1 to redo: their sidecar is missing" in done.stderr
    assert len(captions(tmp_path / "out.jsonl")) == 12
    assert (folder / "img0.xmp").read_text() == "<no xml"


def test_failures_are_not_tried_again_for_their_sidecar(caption, folder, tmp_path) -> None:
    (folder / "bad.png").write_text("no picture")
    words = (folder, "--sidecar", "txt", "-o", tmp_path / "out.jsonl")
    caption(*words, code=1)
    assert "1 failed before" in caption(*words, code=1).stderr


def test_another_style_is_another_caption(caption, folder, tmp_path) -> None:
    out = tmp_path / "out.jsonl"
    caption(folder, "-o", out)
    done = caption(folder, "-o", out, "--style", "alt")
    assert "12 to redo: made by another model, style or prompt" in done.stderr
    assert {record["style"] for record in records(out)} == {"alt"}


@pytest.mark.parametrize("prompt", ["Say {{x}}", '{"answer": "?"}', "Why? \udcff"])
def test_a_prompt_with_braces_is_the_same_the_next_time(caption, folder, tmp_path, prompt) -> None:
    words = (folder, "-o", tmp_path / "out.jsonl", "--prompt", prompt, "--limit", 2)
    caption(*words)
    assert "2 of 12 are done already" in caption(*words).stderr


def test_pictures_from_stdin_do_not_replace_each_other(caption, folder, tmp_path) -> None:
    for number in range(2):
        data = (folder / f"img{number}.png").read_bytes()
        caption("-", "-o", tmp_path / "out.jsonl", input=data)
    assert [record["width"] for record in records(tmp_path / "out.jsonl")] == [40, 45]


def test_kohya_lines(caption, folder, tmp_path) -> None:
    out = tmp_path / "meta.jsonl"
    caption(folder, "-f", "jsonl", "-o", out, "--jsonl-schema", "kohya")
    assert {Path(r["image_path"]).is_absolute() for r in records(out)} == {True}
    assert records(out)[0]["image_size"] == [40, 30]


def test_ten_kills_lose_nothing_and_repeat_nothing(caption, folder, tmp_path, tiny_folder) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    caption(folder, "-f", "jsonl", "-o", whole)
    chance = random.Random(0)
    for _ in range(10):
        seen, more = lines(out), chance.choice((0, 0, 1, 1, 2))
        run = start(tiny_folder, folder, "-f", "jsonl", "-o", out, "--batch-size", 1)
        while run.poll() is None and lines(out) < seen + more:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.01 if more else 1.5))  # with none, while it starts and loads
        run.kill()
        run.communicate()
        captions_so_far = captions(out) if lines(out) else {}
        assert captions_so_far.items() <= captions(whole).items()
    caption(folder, "-f", "jsonl", "-o", out)
    assert captions(out) == captions(whole)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_bar_on_a_terminal(folder, tmp_path, tiny_folder) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    command = [sys.executable, "-m", "argus_cli", "caption", str(folder), *options(tiny_folder)]
    subprocess.run(
        [*command, "-o", tmp_path / "out.jsonl"], stderr=theirs, stdout=theirs, check=True
    )
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the end, on Linux
        while block := os.read(ours, 4096):
            shown += block
    os.close(ours)
    assert b"12/12" in shown and b"pictures/s" in shown


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_interrupt_finishes_the_record_in_hand(tiny_folder, tmp_path, name: str) -> None:
    for number in range(200):
        draw(40, 30, seed=number).save(tmp_path / f"{number}.png")
    out = tmp_path / "out.jsonl"
    run = start(tiny_folder, tmp_path, "-f", "jsonl", "-o", out)
    while not out.exists() or not out.read_bytes():
        time.sleep(0.01)
    run.send_signal(getattr(signal, name))
    _, told = run.communicate(timeout=60)
    assert run.returncode == 130
    done = len(captions(out))
    assert 0 < done < 200
    assert f"stopped after {done} of 200" in told.decode() and "goes on" in told.decode()


def test_two_runs_on_one_output(caption, folder, tmp_path, tiny_folder) -> None:
    from argus_cli.output.journal import open_journal
    from argus_cli.output.lines import JsonLines

    out = tmp_path / "out.jsonl"
    first = open_journal(out, JsonLines())
    assert first
    second = start(tiny_folder, folder, "-f", "jsonl", "-o", out)
    _, told = second.communicate(timeout=60)
    first.close()
    assert second.returncode == 2 and b"another argus is writing to it" in told


def test_full_disk_leaves_whole_records(folder, tmp_path, tiny_folder) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    out = tmp_path / "out.jsonl"
    run = start(tiny_folder, folder, "-f", "jsonl", "-o", out, preexec_fn=small_files)
    _, told = run.communicate(timeout=60)
    assert run.returncode == 1
    kept = len(captions(out))
    assert 0 < kept < 12 and f"the {kept} records before are safe" in told.decode()


def test_torn_last_line_is_dropped(caption, folder, tmp_path) -> None:
    out = tmp_path / "out.jsonl"
    caption(folder, "-f", "jsonl", "-o", out)
    before = captions(out)
    os.truncate(out, out.stat().st_size - 20)
    done = caption(folder, "-f", "jsonl", "-o", out)
    assert "11 of 12 are done already" in done.stderr
    assert captions(out) == before


def test_sidecar_folder_that_cannot_be_written(caption, folder, tmp_path) -> None:
    (tmp_path / "file").write_text("in the way")
    caption(folder, "--sidecar", "txt", "--sidecar-dir", tmp_path / "file" / "x", code=2)
    assert (tmp_path / "file").read_text() == "in the way"


def test_json_is_one_document_whole_or_not_at_all(caption, folder, tmp_path) -> None:
    out = tmp_path / "out.json"
    caption(folder, "-f", "json", "-o", out)
    assert len(json.loads(out.read_text())) == 12


@pytest.mark.parametrize(("name", "lines"), [("out.jsonl", 1), ("out.csv", 2), ("out.txt", 2)])
def test_output_by_its_ending(caption, photo: Path, tmp_path: Path, name: str, lines: int) -> None:
    """Twice: jsonl and csv (with its header) know what is done, text is added at the end."""
    out = tmp_path / name
    for _ in range(2):
        assert caption(photo, "-o", out).stdout == ""
    assert len(out.read_text().splitlines()) == lines


def test_json_replaces_its_own_documents_only(caption, photo: Path, tmp_path: Path) -> None:
    out = tmp_path / "notes.json"
    out.write_text('{"shopping": "list"}')
    refused = caption(photo, "-o", out, code=2)
    assert "doesn't begin as argus would write it" in str(refused.exception)
    assert out.read_text() == '{"shopping": "list"}'
    for overwrite in (["--overwrite"], []):
        caption(photo, "-o", out, *overwrite)
        assert json.loads(out.read_text())["schema"] == 1


def test_one_picture_of_a_folder_keeps_its_name(caption, photo: Path) -> None:
    assert caption(photo.parent).stdout.startswith(f"{photo}\t")
    assert caption(f"{photo.parent}/*.jpg").stdout.startswith(f"{photo}\t")
    assert "\t" not in caption(photo).stdout


def test_text_into_a_folder_that_is_not_there(caption, photo: Path, tmp_path: Path) -> None:
    refused = caption(photo, "-o", tmp_path / "missing" / "out.txt", code=2)
    assert "--output" in str(refused.exception)
