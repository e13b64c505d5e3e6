"""Which inputs a run that goes on has still to do, by what records of earlier runs say of them.

Knows nothing of where the records are.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from argus_cli.output.lines import Entry


class Input(Protocol):
    """What has to be known of a source: None for what is no file."""

    @property
    def name(self) -> str: ...
    @property
    def bytes(self) -> int | None: ...
    @property
    def mtime_ns(self) -> int | None: ...


SourceT = TypeVar("SourceT", bound=Input)


class Pending(NamedTuple, Generic[SourceT]):
    """What is still to be done, what to tell the user of the rest, and how much of it failed."""

    todo: list[SourceT]
    told: str = ""
    failed: int = 0


def pending(
    sources: Sequence[SourceT],
    entry_of: Callable[[SourceT], Entry | None],
    made_by: Sequence[str | None],
    *,
    retry_failed: bool = False,
    lacking: Collection[SourceT] = (),
    by_path: bool = False,
) -> Pending[SourceT]:
    """The sources that are still to be done, and what to tell the user of the others.

    ``made_by`` says where records must come from to be kept, as lines.MADE_BY; None, for a prompt
    that is another for every picture, isn't compared. What is done but ``lacking`` something else
    is done once more. With ``by_path`` any record of a source will do.
    """

    def state(source: SourceT) -> str:
        if (entry := entry_of(source)) is None:
            return "new"
        found = "done" if by_path else _state(source, entry, made_by)
        return "lacking" if found == "done" and source in lacking else found

    states = [state(source) for source in sources]
    redo = {"new", "changed", "remade", "lacking"} | ({"failed"} if retry_failed else set())
    todo = [source for source, state in zip(sources, states, strict=True) if state in redo]
    counts = Counter(states)
    told = _told(counts, len(sources), retry_failed, by_path)
    return Pending(todo, told, 0 if retry_failed else counts["failed"])


def _state(source: Input, entry: Entry, made_by: Sequence[str | None]) -> str:
    if (entry.bytes, entry.mtime_ns) != (source.bytes, source.mtime_ns):
        return "changed"
    if entry.made_by is None:
        return "failed"
    same = all(new in (None, old) for new, old in zip(made_by, entry.made_by, strict=True))
    return "done" if same else "remade"


def _told(states: Counter[str], total: int, retry_failed: bool, by_path: bool) -> str:
    """One line for stderr; empty if the records say nothing of these inputs."""
    alone = ", by their paths alone" if by_path else ""
    failed = " and are tried again" if retry_failed else ", --retry-failed tries them again"
    reasons = {
        "done": f"{{}} of {total} are done already{alone}",
        "changed": "{} to redo: the file has changed",
        "remade": "{} to redo: made by another model, style or prompt",
        "lacking": "{} to redo: their sidecar is missing",
        "failed": f"{{}} failed before{failed}",
    }
    return "; ".join(text.format(states[s]) for s, text in reasons.items() if states[s])
