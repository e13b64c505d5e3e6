"""Two profiles side by side: which stage got slower, beyond what the runs differ by."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from argus_cli.errors import UsageError
from argus_cli.profiling.report import SCHEMA, Document, aligned

_TOO_SHORT = 0.005  # of the whole
_SAME = ("model", "dtype", "device", "threads", "tiles", "distinct_tiles", "prompt_tokens")


def read_profile(path: Path) -> Document:
    """A file that --save wrote. Raises UsageError."""
    try:
        doc = json.loads(path.read_text(encoding="utf-8"))
        rows = [*doc["stages"], *(doc["wholes"][name] for name in ("vision", "prefill"))]
        times = [(row["ms"] > 0, row["fastest_ms"] > 0, row["spread_ms"] >= 0) for row in rows]
        named = all(isinstance(row["stage"], str) for row in doc["stages"])
        if doc["schema"] == SCHEMA and named and all(map(all, times)):
            return dict(doc)
    except OSError as error:
        raise UsageError(f"--compare {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        pass
    raise UsageError(f"--compare {path}: not a profile; make one with `argus profile --save FILE`")


def compare(old: Document, new: Document, fail_over: float | None) -> Document:
    """Each stage before and now, and which got slower by more than ``fail_over`` per cent.

    The fastest runs are compared, which other programs disturb least. A stage that is no slower
    than the earlier runs' median, or so short that its time says nothing, hasn't got slower.
    Raises UsageError for profiles that don't measure the same.
    """
    other = [f"{key} {old.get(key)} (now {new[key]})" for key in _SAME if old.get(key) != new[key]]
    if other:
        raise UsageError(f"--compare: that profile was made with {', '.join(other)}")
    whole = sum(row["ms"] for row in new["stages"])
    rows = [
        {
            "stage": name, "before_ms": before["fastest_ms"], "now_ms": now["fastest_ms"],
            "ratio": now["fastest_ms"] / before["fastest_ms"],
            "spread_ms": [before["spread_ms"], now["spread_ms"]],
            "slower": fail_over is not None and now["ms"] > _TOO_SHORT * whole
            and now["fastest_ms"] > before["fastest_ms"] * (1 + fail_over / 100)
            and now["fastest_ms"] > before["ms"],
        }
        for name, before, now in _pairs(old, new)
    ]  # fmt: skip
    before, now = ({row["stage"] for row in doc["stages"]} for doc in (old, new))
    return {
        "elsewhere": [key for key in ("machine", "versions") if old.get(key) != new.get(key)],
        "only_before": sorted(before - now),
        "only_now": sorted(now - before),
        "stages": rows,
        "slower": [row["stage"] for row in rows if row["slower"]],
    }


def comparison_table(compared: Document) -> list[str]:
    """What compare() found, as aligned lines; a stage that got slower is marked."""
    header = ("stage", "before ms", "now ms", "ratio", "spread before", "now")
    lines = aligned([
        header,
        *(
            (
                row["stage"] + (" !" if row["slower"] else ""), f"{row['before_ms']:.2f}",
                f"{row['now_ms']:.2f}", f"{row['ratio']:.2f}",
                *(f"{spread:.2f}" for spread in row["spread_ms"]),
            )
            for row in compared["stages"]
        ),
    ])  # fmt: skip
    where = " and ".join(compared["elsewhere"])
    notes = {
        "only before: ": ", ".join(compared["only_before"]),
        "only now: ": ", ".join(compared["only_now"]),
        "another in that profile: ": where,
    }
    return [*lines, *(what + names for what, names in notes.items() if names)]


def _pairs(old: Document, new: Document) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each stage that both have, and the wholes, which stay when stages are cut differently."""
    before = {row["stage"]: row for row in old["stages"]}
    for row in new["stages"]:
        if row["stage"] in before:
            yield row["stage"], before[row["stage"]], row
    for name, whole in new["wholes"].items():
        yield f"{name}, whole", old["wholes"][name], whole
