"""A process of its own for what may hang, crash or eat memory: it calls functions for us.

It is started afresh, not forked: a fork would share locks and a loaded model with our threads. The
kernel's timer ends a call that overstays, even one that no longer reaches Python, and even when
we are gone by then. Not a sandbox: a worker may do whatever we may. Knows nothing of pictures.
"""

import logging
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from threading import Thread, Timer
from typing import Any, BinaryIO, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Our own sys.path, not one with the current folder in it, which may be full of strangers' files.
_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from argus_cli.workers import serve; serve()"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # numpy's, which read nothing
# Address space. The hungriest decoder, of HEIC with transparency, took 37 bytes a pixel.
_PLAIN_BYTES, _PIXEL_BYTES = 2**30, 40
_VALUE, _ITEM, _END, _ERROR, _LOG = range(5)
START_S = 60.0  # a start takes a tenth of a second, a hundred times that on a crowded machine
GRACE_S = 5.0  # after which a worker's own timer must have ended it, unless it is stopped
LONGEST_S = 1e6  # 11 days; somewhere beyond it the kernel's timer overflows


class WorkerLost(Exception):
    """The worker has ended before it answered; says why, in words that follow a file's name."""


class WorkersUnavailable(Exception):
    """No worker can be started here, such as in a frozen or an embedded Python."""


def memory_for(max_pixels: int | None) -> int | None:
    """Bytes that suffice a worker to decode a picture of so many pixels; None without a limit."""
    return None if max_pixels is None else _PLAIN_BYTES + _PIXEL_BYTES * max_pixels


def within(timeout_s: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What it returns or raises here in a thread, which is left behind when it takes longer.

    For what waits and may wait for ever, such as for a pipe. Raises TimeoutError.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(function(*args, **kwargs))
        except BaseException as error:
            result.set_exception(error)

    Thread(target=run, daemon=True).start()  # nothing can end it, but the end of us all
    if wait([result], min(timeout_s, LONGEST_S)).not_done:
        raise TimeoutError(f"it didn't come within {timeout_s:g} s, --timeout raises the limit")
    return result.result()


class Worker:
    """One process. One thing is asked of it at a time; whoever makes it closes it.

    A step longer than ``timeout_s`` seconds (11 days at most) is its end, as is more than
    ``memory_bytes`` of address space where the system counts that (None: no bound but its own).
    ``file``, of a number that ``file.fileno()`` tells, stays open in it under the same number.
    Raises WorkersUnavailable.
    """

    def __init__(
        self, timeout_s: float, memory_bytes: int | None = None, file: BinaryIO | None = None
    ) -> None:
        if os.name != "posix" or not sys.executable or getattr(sys, "frozen", False):
            raise WorkersUnavailable("this Python can't be started again")
        self._timeout_s, self._is_late = timeout_s, False
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # what C libraries print of a file
                env=os.environ | _ONE_THREAD,
                pass_fds=[file.fileno()] if file else [],
                process_group=0,  # no Ctrl-C or Ctrl-Z of the terminal reaches it
            )
        except OSError as error:
            raise WorkersUnavailable(error.strerror) from error
        patience = Timer(START_S, self._process.kill)
        patience.start()
        try:
            self._send((timeout_s, memory_bytes))
            self._receive()
        except WorkerLost as error:
            raise WorkersUnavailable("a new process doesn't find its way") from error
        finally:
            patience.cancel()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What a function of a module returns or raises there; an iterator yields as it goes on.

        It is then a step ahead of us, and has to be exhausted before the next call. Relative paths
        mean what they mean here, and log lines come out here. Raises WorkerLost.
        """
        self._send((_folder(), function, args, kwargs))
        kind, value = self._receive()
        if kind == _VALUE:
            return value  # type: ignore[no-any-return]
        return self._items(kind, value)  # type: ignore[return-value]

    def close(self) -> None:
        """End it at once. May be called while another thread waits for its answer."""
        with suppress(OSError), self._process as process:  # which waits, and closes our pipes
            process.kill()

    def _items(self, kind: int, value: Any) -> Iterator[Any]:
        while kind == _ITEM:
            yield value
            kind, value = self._receive()

    def _send(self, message: object) -> None:
        try:
            pickle.dump(message, self._process.stdin, pickle.HIGHEST_PROTOCOL)  # type: ignore[arg-type]
            self._process.stdin.flush()  # type: ignore[union-attr]
        except (OSError, ValueError):  # its end is gone, or ours is closed
            raise self._lost() from None

    def _receive(self) -> tuple[int, Any]:
        """The next answer. Its own timer ends a call; ours a worker that is stopped or stuck."""
        late = Timer(min(self._timeout_s, LONGEST_S) + GRACE_S, self._overstayed)
        late.start()
        try:
            return self._answer()
        finally:
            late.cancel()

    def _overstayed(self) -> None:
        self._is_late = True
        self._process.kill()

    def _answer(self) -> tuple[int, Any]:
        while True:
            try:
                kind, value = pickle.load(self._process.stdout)  # type: ignore[arg-type]
            except (EOFError, OSError, ValueError, pickle.UnpicklingError):
                raise self._lost() from None
            except BaseException:  # what is left of the answer would be taken for the next one
                self.close()
                raise
            if kind == _ERROR:
                raise value
            if kind != _LOG:
                return kind, value
            name, level, message = value
            logging.getLogger(name).log(level, "%s", message)

    def _lost(self) -> WorkerLost:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # to learn how it ended by itself
        self.close()
        number = -self._process.returncode
        if number == signal.SIGALRM or self._is_late:
            return WorkerLost(f"took longer than {self._timeout_s:g} s, --timeout raises the limit")
        if number == signal.SIGKILL:
            return WorkerLost("the process that read it was killed, perhaps for want of memory")
        how = signal.Signals(number).name if number > 0 else f"exit code {-number}"
        return WorkerLost(f"its decoder crashed ({how})")


def serve() -> None:
    """What a worker does until our end of the pipe closes, or one of its limits ends it."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not print among the replies
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a host may have left it ignored, or blocked
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])

    def reply(kind: int, value: object = None) -> None:
        disarm()  # who asked may take their time
        try:
            pickle.dump((kind, value), replies, pickle.HIGHEST_PROTOCOL)
            replies.flush()
        except BaseException:  # nobody is there, or half an answer is out: nothing can follow it
            os._exit(1)

    timeout_s, memory_bytes = pickle.load(requests)
    _limit(memory_bytes)
    logging.getLogger().addHandler(_Forwarded(reply))
    reply(_VALUE)
    while True:
        try:
            folder, function, args, kwargs = pickle.load(requests)
        except EOFError:
            return
        try:
            arm(timeout_s)
            with suppress(OSError):  # gone, or closed to us: what is relative won't be found
                os.chdir(folder)
            result = function(*args, **kwargs)
            if not isinstance(result, Iterator):
                reply(_VALUE, result)
                continue
            for item in result:
                reply(_ITEM, item)
                arm(timeout_s)
            reply(_END)
        except Exception as error:
            error.add_note(f"In a worker:\n{traceback.format_exc()}")
            reply(_ERROR, error)


def arm(timeout_s: float) -> None:
    """From now on this process has so many seconds to live."""
    signal.setitimer(signal.ITIMER_REAL, min(timeout_s, LONGEST_S))


def disarm() -> None:
    """It may take its time again."""
    signal.setitimer(signal.ITIMER_REAL, 0)


def _folder() -> str:
    """The current one; it may have been deleted."""
    with suppress(OSError):
        return os.getcwd()
    return "."


class _Forwarded(logging.Handler):
    """Log lines as replies."""

    def __init__(self, reply: Callable[[int, object], None]) -> None:
        super().__init__()
        self._reply = reply

    def emit(self, record: logging.LogRecord) -> None:
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        self._reply(_LOG, (record.name, record.levelno, record.getMessage()))
        arm(left)


def _limit(memory_bytes: int | None) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # crashes are expected here
    if memory_bytes is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        if soft == resource.RLIM_INFINITY or memory_bytes < soft:
            with suppress(ValueError, OSError):  # macOS doesn't count address space
                resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, hard))
