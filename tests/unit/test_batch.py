"""Many pictures at once: the same captions as one at a time, in order, whatever goes wrong."""

import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import hostile
import pytest
import torch
from conftest import draw

import argus_cli
from argus_cli import batch, picture_reader
from argus_cli.captioner import Request
from argus_cli.captioner.picture import Prepared
from argus_cli.media.sources import Source
from argus_cli.schema import Caption, Failure, Sampling

SIZES = ((90, 60), (60, 90), (64, 64), (200, 50), (33, 250), (90, 60), (128, 128))
caption_each = partial(batch.caption_each, timeout=None)  # starting processes takes a while
REQUEST = Request(sampling=Sampling(12), prompt="What is {name}, {width} wide?" * 2)


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path) -> argus_cli.Captioner:
    return argus_cli.load(tiny_folder, dtype="float32")


@pytest.fixture(scope="module")
def glimpse() -> argus_cli.Captioner:
    return argus_cli.load("glimpse", dtype="float32")


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    """Pictures of several sizes, so of several numbers of tiles; names of several lengths."""
    found = []
    for number, size in enumerate(SIZES):
        path = tmp_path / f"{'x' * number * 3}{number}.png"
        draw(*size, seed=number).save(path)
        found.append(Source(str(path), path, path.stat().st_size, path.stat().st_mtime_ns))
    return found


def alike(one: Caption, other: Caption) -> bool:
    """Equal but for rounding in the confidence."""
    same = replace(one, confidence=0.0) == replace(other, confidence=0.0)
    return same and one.confidence == pytest.approx(other.confidence, abs=1e-4)


@pytest.mark.parametrize("batch_size", [2, 3, 8])
def test_a_batch_says_what_each_says_alone(tiny, sources, batch_size: int) -> None:  # type: ignore[no-untyped-def]
    alone = list(caption_each(tiny, sources, REQUEST, batch_size=1))
    together = list(caption_each(tiny, sources, REQUEST, batch_size=batch_size))
    assert len({len(tiny.tokenizer.encode([r.prompt])) for r in alone}) > 3
    assert len({r.tiles for r in alone}) > 2 and len({r.caption for r in alone}) > 3
    assert all(map(alike, alone, together)) and len(together) == len(alone)


def test_rows_end_at_different_times(tiny, sources) -> None:  # type: ignore[no-untyped-def]
    alone = list(caption_each(tiny, sources, REQUEST, batch_size=1))
    letters = {c for r in alone for c in r.caption[1:-1]}
    stop = max(letters, key=lambda c: len({r.caption.find(c) for r in alone}))
    request = replace(REQUEST, sampling=Sampling(12, stop=(stop,)))
    alone = list(caption_each(tiny, sources, request, batch_size=1))
    assert len({r.new_tokens for r in alone}) > 2
    assert all(map(alike, alone, caption_each(tiny, sources, request)))


def test_glimpse_says_the_same_in_a_batch(glimpse, sources) -> None:  # type: ignore[no-untyped-def]
    photos = sorted((Path(__file__).parents[1] / "photos").glob("*.jpg"))
    some = [*(Source(str(path), path) for path in photos), *sources[:3]]
    request = Request(prompt="What is {name}?")
    alone = list(caption_each(glimpse, some, request, batch_size=1))
    assert len({r.prompt_tokens for r in alone}) > 1 and len({r.new_tokens for r in alone}) > 1
    assert all(map(alike, alone, caption_each(glimpse, some, request)))


def test_what_chance_draws_depends_on_the_seed_alone(tiny, sources) -> None:  # type: ignore[no-untyped-def]
    request = replace(REQUEST, sampling=Sampling(12, temperature=1.0, seed=5))
    alone = list(caption_each(tiny, sources, request, batch_size=1))
    assert all(map(alike, alone, caption_each(tiny, sources, request)))


def test_each_picture_gets_a_seed_of_its_own(tiny, sources) -> None:  # type: ignore[no-untyped-def]
    request = replace(REQUEST, sampling=Sampling(3, temperature=1.0))
    results = list(caption_each(tiny, sources, request))
    assert len({r.seed for r in results}) == len(results)


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_a_failure_costs_its_own_place(tiny, sources, tmp_path, batch_size: int) -> None:  # type: ignore[no-untyped-def]
    bad = tmp_path / "bad.jpg"
    bad.write_text("no picture")
    gone = Source(str(tmp_path / "gone.png"), tmp_path / "gone.png")
    sick = Source(str(bad), bad, 10, 7)
    mixed = [sick, *sources[:2], gone, sources[2], sick]
    results = list(caption_each(tiny, mixed, REQUEST, batch_size=batch_size))
    assert [r.path for r in results] == [s.name for s in mixed]
    assert [isinstance(r, Failure) for r in results] == [True, False, False, True, False, True]
    assert (results[0].type, results[0].bytes, results[0].mtime_ns) == ("ImageError", 10, 7)
    assert (results[1].bytes, results[1].mtime_ns) == (sources[0].bytes, sources[0].mtime_ns)


def test_an_early_failure_is_told_before_the_model_runs(
    tiny, sources, tmp_path, monkeypatch
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(tiny, "features", None)  # must not be reached
    gone = Source("gone.png", tmp_path / "gone.png")
    results = caption_each(tiny, [gone, *sources], REQUEST)
    assert isinstance(next(results), Failure)
    results.close()


def test_bytes_on_a_stream_are_read_in_their_turn(tiny, sources) -> None:  # type: ignore[no-untyped-def]
    piped = Source("<stdin>", io.BytesIO(sources[1].file.read_bytes()))
    results = list(caption_each(tiny, [sources[0], piped, sources[2]], Request(), batch_size=2))
    assert [r.path for r in results] == [sources[0].name, "<stdin>", sources[2].name]
    assert results[1].caption == tiny.caption(sources[1].file).caption


def test_a_stream_that_any_thread_may_read_is_read_ahead(tiny, sources) -> None:  # type: ignore[no-untyped-def]
    class Noted(io.BytesIO):
        any_thread = True

        def read(self, size: int | None = -1) -> bytes:
            seen.add(threading.current_thread().name)
            return super().read(size)

    seen: set[str] = set()
    noted = Source("s3://a.png", Noted(sources[0].file.read_bytes()))
    assert isinstance(next(caption_each(tiny, [noted], Request())), Caption)
    assert seen == {batch.READER}


def test_one_reads_where_nobody_should(tiny, sources) -> None:  # type: ignore[no-untyped-def]
    (result,) = caption_each(tiny, sources[:1], REQUEST, workers=0)
    assert isinstance(result, Caption)


def test_text_is_seen_as_it_grows_one_at_a_time(tiny, sources) -> None:  # type: ignore[no-untyped-def]
    pieces: list[str] = []
    results = []
    for result in caption_each(tiny, sources[:2], REQUEST, pieces.append):
        results.append(result.caption)
        assert "".join(pieces).strip() == result.caption and len(pieces) > 1
        pieces.clear()
    assert len(results) == 2


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("MPS backend out of memory"),
    MemoryError(),
]


def limit(monkeypatch: pytest.MonkeyPatch, rows: int, error: Exception) -> list[int]:
    """Memory for so many pictures at once; returns the sizes that were tried."""
    tried: list[int] = []
    caption = batch.caption_together

    def limited(captioner: argus_cli.Captioner, pictures: list[Prepared]) -> list[Caption]:
        tried.append(len(pictures))
        if len(pictures) > rows:
            raise error
        return caption(captioner, pictures)

    monkeypatch.setattr(batch, "caption_together", limited)
    return tried


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: str(error)[:9])
def test_out_of_memory_halves_the_batch_for_good(tiny, sources, monkeypatch, error) -> None:  # type: ignore[no-untyped-def]
    expected = list(caption_each(tiny, sources, REQUEST, batch_size=8))
    tried = limit(monkeypatch, 2, error)
    assert all(map(alike, expected, caption_each(tiny, sources, REQUEST, batch_size=5)))
    assert tried == [5, 2, 2, 1, 2]


def test_a_picture_that_memory_does_not_hold_is_a_failure(tiny, sources, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def encode(tiles: torch.Tensor) -> torch.Tensor:
        if len(tiles) > 15:
            raise RuntimeError("not enough memory: you tried to allocate 9 bytes")
        return whole(tiles)

    whole = tiny.model.encode_tiles
    monkeypatch.setattr(tiny.model, "encode_tiles", encode)
    for batch_size in (1, 4):
        results = list(caption_each(tiny, sources, REQUEST, batch_size=batch_size))
        failed = [r for r in results if isinstance(r, Failure)]
        assert [r.path for r in failed] == [sources[2].name, sources[6].name]  # the squares
        assert failed[0].message.startswith(f"{sources[2].name}: not enough memory; use fewer")


def test_a_defect_is_no_failure(tiny, sources, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    for name in ("features", "prompt_ids"):  # in the model's thread, in a reader's
        with monkeypatch.context() as patch:
            patch.setattr(tiny, name, None)
            with pytest.raises(TypeError):
                list(caption_each(tiny, sources, REQUEST, batch_size=8))


def test_a_picture_that_hangs_crashes_or_starves_costs_its_own_place(
    tiny, sources, monkeypatch
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(picture_reader, "read_picture", hostile.read_picture)
    bad = [Source(f"{name}.jpg", Path(f"{name}.jpg")) for name in ("hang", "crash", "starve")]
    mixed = [sources[0], *bad, sources[1]]
    first, hung, crashed, starved, last = batch.caption_each(tiny, mixed, REQUEST, timeout=2.0)
    assert isinstance(first, Caption) and isinstance(last, Caption)
    assert hung.message == "hang.jpg: took longer than 2 s, --timeout raises the limit"
    assert crashed.message == "crash.jpg: its decoder crashed (SIGSEGV)"
    assert starved.type == "MemoryError" and starved.path == "starve.jpg"
    assert not children()


def test_a_defect_in_a_worker_is_no_failure(tiny, sources, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(picture_reader, "read_picture", hostile.read_picture)
    with pytest.raises(ZeroDivisionError):
        list(batch.caption_each(tiny, [Source("defect", Path("defect"))], REQUEST))
    assert not children()


@pytest.mark.parametrize("on_text", [None, str.strip], ids=["batch", "stream"])
def test_without_a_timeout_pictures_are_read_here(tiny, sources, monkeypatch, on_text) -> None:  # type: ignore[no-untyped-def]
    def where(*_: object) -> None:
        raise ZeroDivisionError(os.getpid())

    monkeypatch.setattr(picture_reader, "read_picture", where)
    with pytest.raises(ZeroDivisionError, match=str(os.getpid())):
        list(caption_each(tiny, sources, Request(), on_text, timeout=0))
    with pytest.raises(AttributeError, match="local object"):  # on its way to a worker
        list(batch.caption_each(tiny, sources, Request(), on_text))


def test_that_there_is_no_time_limit_is_said_once(tiny, sources, monkeypatch, caplog) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("sys.executable", None)
    for _ in range(2):  # once a run
        caplog.clear()
        results = list(batch.caption_each(tiny, sources * 3, REQUEST, workers=3))
        assert {type(result) for result in results} == {Caption}
        assert len(caplog.messages) == 1


def test_reading_ahead_is_bounded(tiny, sources) -> None:  # type: ignore[no-untyped-def]
    taken = 0

    def endless() -> Iterator[Source]:
        nonlocal taken
        while True:
            taken += 1
            yield sources[taken % len(sources)]

    results = caption_each(tiny, endless(), REQUEST, batch_size=2, workers=3)
    for _ in range(5):
        next(results)
    assert taken <= 6 + 2 + 3 + 1  # of three batches, a batch and a picture a reader ahead
    results.close()


def test_reading_ahead_is_bounded_by_bytes(tiny, sources, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(batch, "AHEAD_BYTES", 2 * 17 * 64 * 64 * 3)
    taken = []
    results = caption_each(
        tiny, (taken.append(s) or s for s in sources * 9), REQUEST, batch_size=4, workers=3
    )
    next(results)
    assert len(taken) == 4 + 2
    results.close()


def children() -> list[int]:
    """Processes of ours that run or were left as zombies."""
    lists = Path("/proc/self/task").glob("*/children")
    return [int(number) for some in lists for number in some.read_text().split()]


def readers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == batch.READER}


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_closing_ends_the_readers(tiny, sources, taken: int) -> None:  # type: ignore[no-untyped-def]
    results = batch.caption_each(tiny, sources * 20, REQUEST, batch_size=2)
    for _ in range(taken):
        next(results)
    assert bool(readers()) == bool(taken)
    results.close()
    assert not readers() and not children()


def test_a_reader_that_hangs_does_not_hold_up_the_end(tiny, sources, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(batch, "PATIENCE_S", 0.1)
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    results = caption_each(tiny, [*sources[:2], Source(str(pipe), pipe)], REQUEST, batch_size=2)
    next(results)
    results.close()
    assert readers()  # it still waits for someone to write
    pipe.write_bytes(b"")
    deadline = time.monotonic() + 10
    while readers() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not readers()


SCRIPT = """
import sys
from pathlib import Path
import argus_cli
from argus_cli.batch import caption_each
from argus_cli.media.sources import Source

captioner = argus_cli.load(sys.argv[1], dtype="float32")
paths = [Path(name) for name in sys.argv[2:]]
try:
    sources = (Source(str(path), path) for _ in range(10**6) for path in paths)
    for result in caption_each(captioner, sources, argus_cli.Request(), batch_size=4):
        print(result.path, flush=True)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_the_process_and_its_workers(
    tiny_folder: Path, sources: list[Source], number: signal.Signals
) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tiny_folder), *(s.name for s in sources)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        lines = [process.stdout.readline() for _ in range(9)]
        lists = Path(f"/proc/{process.pid}/task").glob("*/children")
        workers = [number for some in lists for number in some.read_text().split()]
        process.send_signal(number)
        # Not communicate(), which doesn't know what readline() has read ahead.
        rest, errors = process.stdout.read(), process.stderr.read()
    code = 130 if number == signal.SIGINT else -number
    assert (process.returncode, errors) == (code, b"")
    names = [line.decode().rstrip() for line in [*lines, *rest.splitlines()]]
    expected = [sources[number % len(sources)].name for number in range(len(names))]
    assert names == expected
    assert workers
    deadline = time.monotonic() + 10
    while any(map(runs, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(runs, workers))


def runs(process: str) -> bool:
    """Whether it is there, and no zombie that the system has yet to bury."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_generator_left_open_is_quiet_at_exit(tiny_folder: Path, sources: list[Source]) -> None:
    script = SCRIPT.partition("try:")[0] + (
        "sources = [Source(str(path), path) for path in paths * 9]\n"
        "results = caption_each(captioner, sources, argus_cli.Request(), batch_size=2)\n"
        "next(results)\n"
    )
    command = [sys.executable, "-c", script, str(tiny_folder), *(s.name for s in sources)]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_seconds_are_those_of_one_picture(tiny, sources) -> None:  # type: ignore[no-untyped-def]
    start = time.perf_counter()
    results = list(caption_each(tiny, sources, REQUEST, batch_size=8))
    wall = time.perf_counter() - start
    busy = [r.seconds.vision + r.seconds.prefill + r.seconds.generate for r in results]
    assert 0 < sum(busy) < wall
    assert len({r.seconds.generate for r in results}) == 1  # equal shares
    assert all(r.seconds.decode > 0 and r.seconds.preprocess > 0 for r in results)


def test_a_gpu_sees_the_tiles_of_a_batch_at_once(tiny, sources, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """The branch for it, run on the CPU."""
    from argus_cli.captioner import together

    expected = list(caption_each(tiny, sources, REQUEST, batch_size=8))
    calls = []
    whole = tiny.model.encode_tiles
    monkeypatch.setattr(tiny.model, "encode_tiles", lambda t: calls.append(len(t)) or whole(t))
    monkeypatch.setattr(together, "_TOWER_ALONE", ())
    assert all(map(alike, expected, caption_each(tiny, sources, REQUEST, batch_size=8)))
    assert calls == [sum(r.tiles for r in expected)]


def test_overflow_ends_the_run_and_says_what_to_do(tiny, sources, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    whole = tiny.model.next_logits
    monkeypatch.setattr(tiny.model, "next_logits", lambda *words: whole(*words) * float("nan"))
    with pytest.raises(argus_cli.ModelError, match=re.escape("use --dtype bfloat16 or float32")):
        list(caption_each(tiny, sources, REQUEST, batch_size=8))
