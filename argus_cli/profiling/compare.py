"""Two profiles side by side: which stage got slower, beyond what the runs differ by."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from argus_cli.errors import UsageError
from argus_cli.profiling.report import SCHEMA, Document, aligned

_SAME = ("model", "dtype", "device", "threads", "tiles", "distinct_tiles", "prompt_tokens")


def read_profile(path: Path) -> Document:
    """A file that --save wrote. Raises UsageError."""
    try:
        doc = json.loads(path.read_text(encoding="utf-8"))
        rows = [*doc["stages"], *(doc["wholes"][name] for name in ("vision", "prefill"))]
        times = [(row["ms"] > 0, row["spread_ms"] >= 0) for row in rows]
        named = all(isinstance(row["stage"], str) for row in doc["stages"])
        if doc["schema"] == SCHEMA and named and all(map(all, times)):
            return dict(doc)
    except OSError as error:
        raise UsageError(f"--compare {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        pass
    raise UsageError(f"--compare {path}: not a profile; make one with `argus profile --save FILE`")


def compare(old: Document, new: Document, fail_over: float | None) -> tuple[list[str], list[str]]:
    """A table of both, and the stages that got slower by more than ``fail_over`` per cent.

    The spread of the runs, the larger of the two, is allowed on top. Raises UsageError for
    profiles that don't measure the same.
    """
    other = [f"{key} {old.get(key)} (now {new[key]})" for key in _SAME if old.get(key) != new[key]]
    if other:
        raise UsageError(f"--compare: that profile was made with {', '.join(other)}")
    rows, slower = [("stage", "before", "now", "ratio", "spread")], []
    for name, before, now in _pairs(old, new):
        spread = max(before["spread_ms"], now["spread_ms"])
        rows.append((
            name, f"{before['ms']:.2f}", f"{now['ms']:.2f}", f"{now['ms'] / before['ms']:.2f}",
            f"{spread:.2f}",
        ))  # fmt: skip
        limit = before["ms"] * (1 + (fail_over or 0) / 100) + spread
        if fail_over is not None and now["ms"] > limit:
            slower.append(name)
    names = [{row["stage"] for row in doc["stages"]} for doc in (old, new)]
    only = [
        f"only {when}: {', '.join(sorted(those))}"
        for when, those in (("before", names[0] - names[1]), ("now", names[1] - names[0]))
        if those
    ]
    return [*aligned(rows), *only], slower


def _pairs(old: Document, new: Document) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each stage that both have, and the wholes, which stay when stages are cut differently."""
    before = {row["stage"]: row for row in old["stages"]}
    for row in new["stages"]:
        if row["stage"] in before:
            yield row["stage"], before[row["stage"]], row
    for name, whole in new["wholes"].items():
        yield f"{name}, whole", old["wholes"][name], whole
