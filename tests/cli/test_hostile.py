"""argus where little is given: no streams, no folder, no memory, no network, odd names, signals."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest
from conftest import draw
from typer.testing import CliRunner

from argus_cli.cli import app as boundary
from argus_cli.cli import profile
from argus_cli.cli.run import _interruptible
from argus_cli.cli.stderr import say

OPTIONS = ("--max-new-tokens", "2", "--dtype", "float32")


def argus(words: list[object], **more: object) -> subprocess.CompletedProcess[str]:
    """A process of its own, which has streams, limits and a folder of its own."""
    command = [sys.executable, "-m", "argus_cli", *map(str, words)]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=100, **more)  # type: ignore[call-overload, no-any-return]


def test_with_all_streams_closed_an_output_is_whole(tiny_folder: Path, photo: Path) -> None:
    bad, out = photo.with_name("bad.jpg"), photo.with_name("out.jsonl")
    bad.write_text("no picture, of which stderr would be told")
    words = ["caption", photo, bad, "-o", out, "-m", tiny_folder, *OPTIONS]
    done = argus(words, preexec_fn=lambda: os.closerange(0, 3))
    assert done.returncode == 1
    assert [json.loads(line)["path"] for line in out.read_text().splitlines()] == [
        str(photo),
        str(bad),
    ]


def test_a_closed_stdout_is_said_once() -> None:
    done = argus(["models", "list"], preexec_fn=lambda: os.close(1))
    assert (done.returncode, done.stderr) == (
        1, "argus: stdout took no more: Bad file descriptor\n",
    )  # fmt: skip


@pytest.mark.parametrize("debug", ["0", "1"])
def test_what_c_libraries_print_stays_inside(tmp_path: Path, debug: str) -> None:
    path, stream = tmp_path / "odd.tif", BytesIO()
    draw(64, 64).save(stream, "TIFF", compression="tiff_lzw")
    content = stream.getvalue()
    path.write_bytes(content[:16] + b"\xff" * 8 + content[24:])
    done = argus(["caption", path], env=os.environ | {"ARGUS_DEBUG": debug})
    assert f"{path}: truncated or damaged" in done.stderr
    raw = [line for line in done.stderr.splitlines() if "code not yet in table" in line]
    assert done.returncode == 1 and bool(raw) == (debug == "1")  # where nothing is hidden


def test_a_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    code = "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1]); sys.argv[1:] = ['-h']; "
    code += "from argus_cli.__main__ import main; main()"
    command = [sys.executable, "-c", code, str(tmp_path / "gone")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == "argus: the current folder has been removed; change to another\n"


def test_too_little_memory_is_said_in_a_line(photo: Path) -> None:
    limit = 250_000_000  # bytes: torch alone takes more
    done = argus(
        ["caption", photo], preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit,) * 2)
    )
    assert done.returncode == 1
    assert done.stderr.startswith("argus: not enough memory;") and done.stderr.count("\n") == 1


@pytest.fixture
def handlers() -> Iterator[None]:
    """The signals are as they were afterwards."""
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {name: signal.getsignal(name) for name in names}
    yield
    for name, handler in before.items():
        signal.signal(name, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_is_ctrl_c(name: signal.Signals) -> None:
    signal.signal(name, signal.SIG_DFL)
    boundary._heed_signals()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(name)
    with _interruptible(several=True) as interrupt:
        signal.raise_signal(name)
        assert interrupt.asked


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_is_to_be_ignored_is(name: signal.Signals) -> None:
    signal.signal(name, signal.SIG_IGN)
    boundary._heed_signals()
    with _interruptible(several=True) as interrupt:
        signal.raise_signal(name)
        assert not interrupt.asked


@pytest.mark.parametrize("stderr", ["/dev/full", "long"])
def test_stderr_takes_what_it_can(
    stderr: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = Path(stderr) if stderr == "/dev/full" else tmp_path / stderr
    if not path.parent.exists() or stderr == "/dev/full" and not path.exists():
        pytest.skip("no /dev/full here")
    with path.open("w", buffering=1) as file:
        monkeypatch.setattr(sys, "stderr", file)
        say("x" * 10**6)
        monkeypatch.undo()
    assert path.stat().st_size < 5000


@pytest.fixture
def caption(tiny_folder: Path) -> Callable[..., str]:
    def run(*words: object) -> str:
        options = ("-m", str(tiny_folder), *OPTIONS)
        done = CliRunner().invoke(boundary.app, ["caption", *map(str, words), *options])
        assert done.exit_code == 0, done.exception
        return done.stdout

    return run


def test_a_model_on_disk_needs_no_socket(
    caption: Callable[..., str], photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("argus reached for the network")

    for name in ("socket", "create_connection", "getaddrinfo", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)
    assert caption(photo)


@pytest.mark.parametrize(
    "name", ["esc\x1b]0;x\x07.jpg", "two\nlines.jpg", "\u202egpj.jpg", "\u2028.jpg"]
)
def test_a_name_is_one_line_and_steers_nothing(
    caption: Callable[..., str], tmp_path: Path, name: str
) -> None:
    for each in (name, "other.jpg"):
        draw(40, 30).save(tmp_path / each)
    for shown in (caption(tmp_path, "--dry-run"), caption(tmp_path)):
        assert len(shown.splitlines()) == 2
        assert all(c.isprintable() or c in "\t\n" for c in shown)


def test_a_profile_steers_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    profile._print(profile.Format.table, {}, ["only before: \x1b]0;x\x07", "last\u202e"])
    assert capsys.readouterr().out == "only before:  ]0;x \nlast \n"


def test_a_closed_stdin_is_called_stdin() -> None:
    code = "import sys; from argus_cli.cli import app; from argus_cli.media.images import name_of; "
    code += "app._open_closed_streams(); print(name_of(sys.stdin.buffer), sys.stdin.read())"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, preexec_fn=lambda: os.close(0)
    )
    assert done.stdout == b"<stdin> \n"


def test_without_a_folder_for_temporary_files_it_is_said_what_to_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    with pytest.raises(FileNotFoundError) as caught:  # as of a library that is imported
        tempfile.gettempdir()
    told = "no folder for temporary files can be written; set TMPDIR to one"
    assert boundary._message(caught.value) == told


def test_words_are_utf8_whatever_the_locale(tiny_folder: Path, photo: Path) -> None:
    raw, options = (
        "caf\udcc3\udca9 \udcff",
        ("--system", "--stop", "--prefix", "--suffix", "--prompt"),
    )
    words = [word for option in options for word in (option, raw)]
    command = ["caption", str(photo), "-f", "json", "-m", str(tiny_folder), *OPTIONS, *words]
    done = CliRunner().invoke(boundary.app, command)
    record = json.loads(done.stdout)
    assert record["prompt"] == "café \ufffd"
    assert record["caption"].startswith("café \ufffd") and record["caption"].endswith("café \ufffd")
