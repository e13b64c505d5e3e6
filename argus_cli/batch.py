"""Many inputs -> one Caption or Failure each, in order; pictures are read ahead of the model."""

import atexit
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from functools import partial
from os import PathLike
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import TypeVar

import torch

from argus_cli.captioner import Captioner, Request, Stream
from argus_cli.captioner.picture import Prepared, prepare
from argus_cli.captioner.together import caption_together
from argus_cli.device import available_threads
from argus_cli.errors import InputError
from argus_cli.media.sources import Source
from argus_cli.picture_reader import PictureReader
from argus_cli.schema import Caption, Failure
from argus_cli.smolvlm.tiling import plan_tiles

BATCH_SIZE = 8
TIMEOUT_S = 60.0  # a picture of as many pixels as are allowed takes seconds
AHEAD_BYTES = 512 * 2**20  # of tiles that wait for the model
READER = "argus-reader"  # what its threads are called
PATIENCE_S = 2.0  # for readers to finish the picture in hand when nobody wants it any more

Result = Caption | Failure
T = TypeVar("T", Caption, Prepared)
Pair = tuple[Source, Prepared | Failure]
Prepare = Callable[[Source, PictureReader], Prepared | Failure]


def caption_each(
    captioner: Captioner,
    sources: Iterable[Source],
    request: Request,
    on_text: Callable[[str], None] | None = None,
    *,
    batch_size: int | None = None,
    workers: int | None = None,
    timeout: float | None = TIMEOUT_S,
) -> Iterator[Result]:
    """One result per source, in their order; a bad input costs its own.

    Up to ``batch_size`` captions are written together, while ``workers`` processes (as many as
    there are CPUs, 8 at most) open and cut the pictures to come. One that takes longer than
    ``timeout`` seconds, or crashes its process, is a Failure; without a timeout (None or 0)
    pictures are read in threads of this process, in which nothing can be ended. A batch that memory
    doesn't hold is halved. With ``on_text``, which sees a caption grow, pictures are opened and
    captioned one after the other. Closing the generator ends the processes.

    A record's seconds are those of its own decode, preprocess and prefill, however much of that
    happened at the same time, and its share of what was done for the batch.
    """
    size = batch_size or _batch_size(captioner, request)
    if on_text:
        return _one_by_one(captioner, sources, request, on_text, timeout)
    readers = min(8, available_threads()) if workers is None else max(1, workers)
    return _in_batches(captioner, sources, request, size, readers, timeout)


def _one_by_one(
    captioner: Captioner,
    sources: Iterable[Source],
    request: Request,
    on_text: Callable[[str], None],
    timeout: float | None,
) -> Iterator[Result]:
    def caption(source: Source) -> Caption:
        stream = Stream(captioner, source.file, request.changed({}), read)
        for piece in stream:
            on_text(piece)
        return stream.result

    with closing(PictureReader(timeout, request.max_pixels)) as read:
        for source in sources:
            yield _signed(source, _or_failure(partial(caption, source), source))


def _in_batches(
    captioner: Captioner,
    sources: Iterable[Source],
    request: Request,
    size: int,
    count: int,
    timeout: float | None,
) -> Iterator[Result]:
    model = _Model(captioner, size)
    warns = Lock()
    readers = [PictureReader(timeout, request.max_pixels, warns) for _ in range(count + 1)]

    def prepared(source: Source, read: PictureReader) -> Prepared | Failure:
        seeded = request.changed({})  # each its own seed, where one is picked
        return _or_failure(lambda: prepare(captioner, source.file, seeded, read), source)

    tile_bytes = captioner.config.preprocess.tile**2 * 3
    most = max(1, AHEAD_BYTES // (tile_bytes * _most_tiles(captioner, request)))
    ahead = min(size + count, most)
    batch: list[Pair] = []
    with closing(_read_ahead(prepared, sources, readers, ahead)) as pairs:
        for pair in pairs:
            batch.append(pair)
            if len(batch) == size or isinstance(batch[0][1], Failure):
                yield from model.results(batch)
                batch.clear()
        yield from model.results(batch)


def _batch_size(captioner: Captioner, request: Request) -> int:
    """Eight; on a CPU fewer of many tiles, so that a killed run loses a second's work."""
    slow = captioner.model.device.type == "cpu"
    return max(1, BATCH_SIZE // _most_tiles(captioner, request)) if slow else BATCH_SIZE


def _most_tiles(captioner: Captioner, request: Request) -> int:
    """The tiles of one picture at most: of a square as large as the model wants them."""
    config = captioner.config.preprocess
    return plan_tiles((config.longest_edge,) * 2, config, request.tiles).tiles


def _read_ahead(
    prepare: Prepare, sources: Iterable[Source], readers: Sequence[PictureReader], ahead: int
) -> Generator[Pair, None, None]:
    """Each source with what ``prepare`` makes of it, up to ``ahead`` of them before their turn.

    Each reader but the first has a thread. What is no path, such as stdin, is read in its turn and
    by the caller's thread, since a thread that waits there could not be ended; unless it has an
    ``any_thread`` that is true. Closes the readers.
    """
    jobs: SimpleQueue[tuple[Future[Prepared | Failure], Source] | None] = SimpleQueue()
    over, forget = Event(), atexit.unregister
    threads = [
        Thread(target=_read, args=(prepare, reader, jobs, over), name=READER, daemon=True)
        for reader in readers[1:]
    ]
    pending: deque[tuple[Source, Callable[[], Prepared | Failure]]] = deque()

    def end() -> None:
        if over.is_set():
            return
        over.set()
        for reader in readers:
            reader.close()
        for _ in threads:
            jobs.put(None)
        deadline = time.monotonic() + PATIENCE_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # A generator that nobody closes is closed while Python shuts down, when it is too late.
    atexit.register(end)
    for thread in threads:
        thread.start()
    try:
        for source in sources:
            if isinstance(source.file, str | PathLike) or getattr(source.file, "any_thread", False):
                future: Future[Prepared | Failure] = Future()
                jobs.put((future, source))
                pending.append((source, future.result))
            else:
                pending.append((source, partial(prepare, source, readers[0])))
            if len(pending) > ahead:
                first, outcome = pending.popleft()
                yield first, outcome()
        while pending:
            first, outcome = pending.popleft()
            yield first, outcome()
    finally:
        end()
        forget(end)


def _read(
    prepare: Prepare,
    reader: PictureReader,
    jobs: "SimpleQueue[tuple[Future[Prepared | Failure], Source] | None]",
    over: Event,
) -> None:
    """What a reader's thread does until it is over."""
    while (job := jobs.get()) and not over.is_set():
        future, source = job
        try:
            future.set_result(prepare(source, reader))
        except BaseException as error:  # a defect: raised where the picture's turn comes
            future.set_exception(error)


class _Model:
    """Captions several pictures at once, fewer from the first time on that memory runs out."""

    def __init__(self, captioner: Captioner, size: int):
        self._captioner, self._size = captioner, size

    def results(self, batch: list[Pair]) -> Iterator[Result]:
        """One result for each of the batch, in its order."""
        captions = self._captions([(s, p) for s, p in batch if isinstance(p, Prepared)])
        for source, outcome in batch:
            result = outcome if isinstance(outcome, Failure) else next(captions)
            yield _signed(source, result)

    def _captions(self, pairs: list[tuple[Source, Prepared]]) -> Iterator[Result]:
        while pairs:
            some = pairs[: self._size]
            done = self._attempt(some)
            if done is None and len(some) > 1:
                self._size = len(some) // 2
                continue
            yield from [_no_memory(some[0][0])] if done is None else done
            pairs = pairs[len(some) :]

    def _attempt(self, pairs: list[tuple[Source, Prepared]]) -> list[Caption] | None:
        """Their captions, or None when memory ran out."""
        try:
            return caption_together(self._captioner, [prepared for _, prepared in pairs])
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
        # Here the exception is gone, and with it the tensors of the frames that it came through.
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return None


def _or_failure(call: Callable[[], T], source: Source) -> T | Failure:
    try:
        return call()
    except InputError as error:
        return Failure(source.name, type(error).__name__, str(error))
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        return _no_memory(source)


def _no_memory(source: Source) -> Failure:
    reason = "not enough memory; use fewer --tiles, a smaller --model or --dtype bfloat16"
    return Failure(source.name, "MemoryError", f"{source.name}: {reason}")


def _is_out_of_memory(error: Exception) -> bool:
    """Of Python, of CUDA, or of the CPU's and MPS's allocators, which raise plain RuntimeErrors."""
    told = ("not enough memory", "DefaultCPUAllocator", "out of memory")
    plain = isinstance(error, RuntimeError) and any(words in str(error) for words in told)
    return plain or isinstance(error, MemoryError | torch.OutOfMemoryError)


def _signed(source: Source, result: Result) -> Result:
    """The result with what the record says of its file."""
    return replace(result, path=source.name, bytes=source.bytes, mtime_ns=source.mtime_ns)
