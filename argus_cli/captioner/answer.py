"""Tokens to text: what is certain is given out, what may yet be cut is held back.

A tail that only repeats what stands before it is held back; if it goes on, the answer ends before
it. So does the beginning of a stop string.
"""

from collections.abc import Callable, Iterator

from argus_cli.generation import RepetitionGuard, Step
from argus_cli.smolvlm.config import Calibration
from argus_cli.smolvlm.tokenizer import IncrementalDecoder, Tokenizer


class Answer:
    """One answer: iterate over it for the text as it grows, then read what became of it.

    In a batch, where the tokens of many answers come in turn, they are pushed instead.
    """

    def __init__(
        self,
        steps: Iterator[Step],
        tokenizer: Tokenizer,
        end_tokens: tuple[int, ...],
        stop: tuple[str, ...] = (),
        calibration: Calibration | None = None,
    ):
        self._calibration = calibration
        self._source, self._end_tokens, self._stop = steps, end_tokens, stop
        self._decoder, self._guard = IncrementalDecoder(tokenizer), RepetitionGuard()
        self._steps: list[Step] = []
        self._given = 0  # characters given out
        self.on_first_token: Callable[[], object] | None = None
        self.text = ""
        self.tokens = 0  # those of which the text is in ``text``
        self.finish_reason = ""  # stop | length | repetition, empty while it is written

    @property
    def confidence(self) -> float:
        """Mean log-probability of the answer's tokens, 0 for an empty answer; of a calibrated
        model the log-probability that it is right."""
        kept = self._steps[: self.tokens]
        mean = sum(step.log_probability for step in kept) / len(kept) if kept else 0.0
        return self._calibration.log_probability(mean) if self._calibration else mean

    def __iter__(self) -> Iterator[str]:
        for step in self._source:
            if self.on_first_token and not self._steps:
                self.on_first_token()
            if fresh := self.push(step):
                yield fresh
            if self.finish_reason:
                return
        if fresh := self.end():
            yield fresh

    def complete(self) -> "Answer":
        """Write it to its end."""
        for _ in self:
            pass
        return self

    def push(self, step: Step) -> str:
        """The text that one more token makes certain; ``finish_reason`` is set by the last one."""
        if step.token in self._end_tokens:
            self._finish("stop")
        else:
            self._append(step)
        return self._take()

    def end(self) -> str:
        """The rest of the text, where the model may write no more."""
        self._finish("length")
        return self._take()

    def _append(self, step: Step) -> None:
        self._steps.append(step)
        self._guard.push(step.token)
        if self._guard.looping:
            self.text += self._decoder.finish()
            self.finish_reason = "repetition"
        else:
            self._decode(len(self._steps) - self._guard.held)

    def _finish(self, reason: str) -> None:
        """The model has ended: nothing is held back any more."""
        self._decode(len(self._steps))
        if not self.finish_reason:
            self.text += self._decoder.finish()
            self.finish_reason = reason

    def _decode(self, certain: int) -> None:
        while self.tokens < certain and not self.finish_reason:
            self.text += self._decoder.push(self._steps[self.tokens].token)
            self.tokens += 1
            self._cut_at_stop()

    def _cut_at_stop(self) -> None:
        found = [at for stop in self._stop if (at := self.text.find(stop)) >= 0]
        if found:
            self.text = self.text[: min(found)]
            self.finish_reason = "stop"

    def _take(self) -> str:
        """Text that is new and certain."""
        end = len(self.text)
        if not self.finish_reason:
            end -= max((_overlap(self.text, stop) for stop in self._stop), default=0)
        fresh, self._given = self.text[self._given : end], max(end, self._given)
        return fresh


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of ``text`` begin ``stop``."""
    sizes = range(min(len(text), len(stop)), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)
