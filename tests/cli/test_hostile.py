"""argus where little is given: no streams, no folder, no memory, no network, odd names, signals."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
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
        1, "argus: the output took no more: Bad file descriptor\n",
    )  # fmt: skip


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
