"""A run over many pictures: its results one by one, the bar beside them, and how it ends."""

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from types import FrameType

from tqdm import tqdm

from argus_cli.cli.stderr import say
from argus_cli.errors import ExitCode
from argus_cli.media.sources import Source
from argus_cli.schema import Caption, Failure

Result = Caption | Failure


def run(
    sources: Sequence[Source],
    results: Iterable[Result],
    take: Callable[[Source, Result], Result],
    way_on: str,
    *,
    fail_fast: bool,
    bar: bool,
    verbose: bool,
) -> ExitCode:
    """Hand each result to ``take`` as it comes, and tell stderr of it.

    ``way_on`` is what to say after a run that was stopped.
    """
    several, done, failed = len(sources) > 1, 0, 0
    hidden = not bar or not several or not sys.stderr.isatty()
    progress = tqdm(total=len(sources), unit=" pictures", disable=hidden)
    with closing(progress), _interruptible(several) as interrupt:
        for source, result in zip(sources, results, strict=False):
            result = take(source, result)
            done += 1
            if isinstance(result, Failure):
                failed += 1
                progress.set_postfix(failed=failed, refresh=False)
            progress.update()
            if told := _told(result, verbose):
                with tqdm.external_write_mode(file=sys.stderr):
                    say(told)
            if interrupt.asked or fail_fast and failed:
                break
    if failed and several:
        say(f"{failed} of {done} failed")
    if interrupt.asked and done < len(sources):
        say(f"stopped after {done} of {len(sources)}" + (f"; {way_on}" if way_on else ""))
        return ExitCode.INTERRUPTED
    return ExitCode.SOME_FAILED if failed else ExitCode.OK


class Interrupt:
    """Whether the user, or the system on its way down, has asked to stop."""

    asked = False


@contextmanager
def _interruptible(several: bool) -> Iterator[Interrupt]:
    """Within, the first Ctrl-C, SIGTERM or SIGHUP asks to stop after the record in hand.

    The second stops at once, as does the first where there is only one record.
    """
    interrupt = Interrupt()

    def ask(number: int, frame: FrameType | None) -> None:
        if interrupt.asked or not several:
            raise KeyboardInterrupt
        interrupt.asked = True
        say("finishing the picture in hand; Ctrl-C again stops at once")

    names = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
    heeded = {name for name in names if signal.getsignal(name) is not signal.SIG_IGN}
    before = {name: signal.signal(name, ask) for name in heeded}
    try:
        yield interrupt
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _told(result: Result, verbose: bool) -> str:
    """What stderr says of one picture."""
    if isinstance(result, Failure):
        return result.message
    return _phases(result) if verbose else ""


def _phases(done: Caption) -> str:
    seconds = done.seconds
    tiles = f"{done.tiles} tiles ({done.grid[0]}x{done.grid[1]} and the whole)"
    tiles = tiles if done.tiles > 1 else "1 tile"
    rate = (done.new_tokens - 1) / seconds.generate if seconds.generate and done.new_tokens else 0.0
    return (
        f"{done.path}: {done.width}x{done.height}, {tiles}, "
        f"{done.image_tokens} image + {done.prompt_tokens - done.image_tokens} text tokens; "
        f"decode {seconds.decode:.2f} s, preprocess {seconds.preprocess:.2f} s, "
        f"vision {seconds.vision:.2f} s, prefill {seconds.prefill:.2f} s, "
        f"{done.new_tokens} tokens in {seconds.prefill + seconds.generate:.2f} s "
        f"({rate:.1f} tokens/s), {done.finish_reason}, confidence {done.confidence:.2f}"
    )
