"""A process that calls functions: what comes back, how it ends, and what is left of it."""

import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from argus_cli import workers
from argus_cli.workers import Worker, WorkerLost, WorkersUnavailable, within


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(60.0, memory_bytes=2**29)
    yield worker
    worker.close()


def test_a_call_happens_in_another_process(worker: Worker) -> None:
    there = worker.call(os.getpid)
    assert there == worker.call(os.getpid) != os.getpid()
    assert worker.call(os.getppid) == os.getpid()


def test_an_iterator_comes_item_by_item(worker: Worker) -> None:
    assert list(worker.call(map, str, range(3))) == ["0", "1", "2"]
    assert worker.call(len, "abc") == 3


def test_what_a_call_raises_is_raised_here_with_where_it_came_from(worker: Worker) -> None:
    with pytest.raises(ValueError, match="invalid literal") as caught:
        worker.call(int, "x")
    assert "In a worker" in caught.value.__notes__[0]
    assert worker.call(len, "ab") == 2


def test_log_lines_come_out_here(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    worker.call(logging.warning, "%s is odd", "a.mp4")
    assert caplog.messages == ["a.mp4 is odd"]


def test_what_is_printed_there_does_not_get_between_the_answers(worker: Worker) -> None:
    worker.call(os.write, 1, b"libtiff: warning\n")
    worker.call(print, "hello", flush=True)
    assert worker.call(len, "ab") == 2


def test_a_call_that_overstays_is_ended() -> None:
    worker = Worker(0.1)
    with pytest.raises(WorkerLost, match=r"^took longer than 0.1 s, --timeout raises the limit$"):
        worker.call(time.sleep, 600)
    assert not worker.is_alive


def test_the_limit_is_one_step_s() -> None:
    worker = Worker(0.6)
    for _ in range(2):
        worker.call(time.sleep, 0.35)
    items = worker.call(map, bytes, [2**20] * 3)
    assert len(next(items)) == 2**20
    time.sleep(0.7)  # whoever asks may take their time: the next one is stuck in the pipe
    assert len(list(items)) == 2
    worker.close()


def test_a_host_that_ignores_alarms_does_not_lift_the_limit() -> None:
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    try:
        with pytest.raises(WorkerLost, match="took longer"):
            Worker(0.1).call(time.sleep, 600)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        signal.signal(signal.SIGALRM, before)


def test_a_stopped_worker_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "GRACE_S", 0.2)  # its own timer stands still with it
    with pytest.raises(WorkerLost, match="took longer than 0.3 s"):
        Worker(0.3).call(signal.raise_signal, signal.SIGSTOP)


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (signal.SIGSEGV, r"its decoder crashed \(SIGSEGV\)"),
        (signal.SIGKILL, "was killed, perhaps for want of memory"),
    ],
)
def test_a_crash_is_told(worker: Worker, number: signal.Signals, told: str) -> None:
    with pytest.raises(WorkerLost, match=told):
        worker.call(signal.raise_signal, number)


def test_memory_is_bounded(worker: Worker) -> None:
    assert len(worker.call(bytes, 2**20)) == 2**20
    with pytest.raises(MemoryError):
        worker.call(bytes, 2**29)


def test_a_smaller_bound_of_the_system_stays() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**40, before[1]))
    try:
        worker = Worker(60.0, memory_bytes=2**41)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert worker.call(resource.getrlimit, resource.RLIMIT_AS)[0] == 2**40
    worker.close()


def test_a_limit_beyond_the_clock_is_none(worker: Worker) -> None:
    endless = Worker(1e12)
    assert endless.call(len, "ab") == within(1e12, len, "ab") == 2
    endless.close()


def test_relative_paths_are_those_of_our_folder(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert worker.call(os.getcwd) == str(tmp_path)


def test_ctrl_c_is_not_for_it(worker: Worker) -> None:
    worker.call(signal.raise_signal, signal.SIGINT)
    assert os.getpgid(worker.call(os.getpid)) != os.getpgid(0)


def test_closing_ends_a_call_in_another_thread_and_leaves_no_child(worker: Worker) -> None:
    there = worker.call(os.getpid)
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            worker.call(time.sleep, 600)
        except WorkerLost as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    worker.close()
    thread.join(10)
    assert ended
    with pytest.raises(ProcessLookupError):
        os.kill(there, 0)  # not even a zombie


def test_no_module_of_the_folder_is_imported(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "pickle.py").write_text("raise SystemExit('run by the picture folder')")
    monkeypatch.chdir(tmp_path)
    worker = Worker(60.0)
    assert worker.call(len, "ab") == 2
    worker.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("executable", None),
        ("executable", "/no/such"),
        ("executable", "/bin/true"),
        ("frozen", True),
    ],
)
def test_a_python_that_can_not_be_started_again(monkeypatch, name: str, value: object) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(sys, name, value, raising=False)
    with pytest.raises(WorkersUnavailable):
        Worker(60.0)


def test_a_start_that_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = tmp_path / "python"
    idle.write_text("#!/bin/sh\nexec sleep 600")
    idle.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(idle))
    monkeypatch.setattr(workers, "START_S", 0.1)
    with pytest.raises(WorkersUnavailable, match="doesn't find its way"):
        Worker(60.0)


def test_what_never_comes_is_left_behind() -> None:
    there = threading.Event()
    with pytest.raises(TimeoutError, match=r"^it didn't come within 0.1 s, --timeout raises"):
        within(0.1, there.wait)
    there.set()
    with pytest.raises(ZeroDivisionError):
        within(60.0, divmod, 1, 0)


@pytest.mark.parametrize("works", [True, False], ids=["at work", "idle"])
def test_a_worker_does_not_outlive_us(works: bool) -> None:
    script = (
        "import os, sys, time, threading; from argus_cli.workers import Worker; w = Worker(2.0)\n"
        "print(w.call(os.getpid), flush=True)\n"
        + ("w.call(time.sleep, 600)" if works else "time.sleep(600)")
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as host:
        there = int(host.stdout.readline())
        host.kill()
    deadline = time.monotonic() + 20
    while _is_there(there) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_there(there)


def test_memory_follows_the_pixels() -> None:
    assert workers.memory_for(None) is None
    assert workers.memory_for(10**8) > workers.memory_for(10**7) > 2**30


def _is_there(process: int) -> bool:
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True)
    return done.stdout.strip()[:1] not in (b"", b"Z")
