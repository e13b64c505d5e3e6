"""A folder of records in parts, on disk or in object storage, which many machines fill at once.

A part is there whole or not at all, and its name follows from what is in it: whoever makes it a
second time replaces it by the same. What is in the folder is all that counts when a run goes on.
Where a path has several records, that of the latest run counts, and ``prune`` removes the others.
"""

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from hashlib import blake2b
from io import BytesIO
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from argus_cli.cluster.places import Item, Place, os_reason
from argus_cli.errors import UsageError
from argus_cli.output.lines import MADE_BY, dump, parse_record

Record = dict[str, Any]
FORMATS = ("jsonl", "parquet")
_NAME = re.compile(r"part-(\d{8}T\d{6})-[0-9a-f]{16}\.(jsonl|parquet)")


class Known(NamedTuple):
    """What a record says of its input; ``error`` is None for a caption."""

    part: str
    bytes: int | None
    mtime_ns: int | None
    made_by: tuple[str | None, ...]
    error: Record | None


@dataclass(frozen=True)
class Parts:
    """Where the parts of one run go, and how. Can be sent to other machines."""

    folder: str  # a path or URI
    format: str = "jsonl"
    kind: type = NoneType  # the dataclass of the records, for Parquet
    run: str = field(default_factory=lambda: time.strftime("%Y%m%dT%H%M%S", time.gmtime()))

    def name(self, paths: Iterable[str]) -> str:
        """What the part with these inputs is called in this run."""
        digest = blake2b("\0".join(paths).encode("utf-8", "surrogatepass"), digest_size=8)
        return f"part-{self.run}-{digest.hexdigest()}.{self.format}"

    def write(self, name: str, records: Sequence[Record]) -> None:
        """Write a part, in place of the one by that name. Raises UsageError."""
        parquet = name.endswith(".parquet")
        data = self._parquet(records) if parquet else "".join(dump(r) + "\n" for r in records)
        place = self._place.child(name)
        try:
            place.write_whole(data.encode() if isinstance(data, str) else data)
        except OSError as error:
            raise UsageError(f"--output {place}: {os_reason(error)}") from None

    def read(self, name: str) -> list[Record] | None:
        """The records of a part; None if it isn't there."""
        try:
            data = self._place.child(name).read()
        except FileNotFoundError:
            return None
        if name.endswith(".parquet"):
            from pyarrow.parquet import read_table

            rows: list[Record] = read_table(BytesIO(data)).to_pylist()
            return [{k: v for k, v in row.items() if k != "error" or v} for row in rows]
        return [parse_record(line) for line in data.decode().splitlines()]

    def check_writable(self) -> None:
        """Raise UsageError where nothing can be written, before work is spent on it."""
        self.write(".argus", [])
        self._place.child(".argus").delete()

    def index(self, run: str | None = None) -> dict[str, Known]:
        """What is known of each path, from the parts of all runs or of one."""
        return {path: known[-1] for path, known in self._all(run).items()}

    def prune(self) -> None:
        """Remove the records that later ones replace."""
        stale: dict[str, set[str]] = {}
        for path, known in self._all().items():
            for old in known[:-1]:
                stale.setdefault(old.part, set()).add(path)
        for part, paths in stale.items():
            kept = [r for r in self.read(part) or () if r["path"] not in paths]
            if kept:
                self.write(part, kept)
            else:
                self._place.child(part).delete()

    @property
    def _place(self) -> Place:
        return Place.at(self.folder)

    def _all(self, run: str | None = None) -> dict[str, list[Known]]:
        """The records of each path, the latest at the end."""
        found: dict[str, list[Known]] = {}
        makers: dict[tuple[str | None, ...], tuple[str | None, ...]] = {}
        for part in sorted(self._names(run)):
            for record in self.read(part) or ():
                made_by = tuple(record.get(key) for key in MADE_BY)
                made_by = makers.setdefault(made_by, made_by)  # few, of many records
                known = Known(
                    part, record.get("bytes"), record.get("mtime_ns"), made_by, record.get("error")
                )
                found.setdefault(record["path"], []).append(known)
        return found

    def _names(self, run: str | None) -> Iterator[str]:
        for name in self._place.names():
            if (match := _NAME.fullmatch(name)) and run in (None, match[1]):
                yield name

    def _parquet(self, records: Sequence[Record]) -> bytes:
        import pyarrow as pa
        from pyarrow.parquet import write_table

        sink = BytesIO()
        write_table(pa.Table.from_pylist(list(records), schema=arrow_schema(self.kind)), sink)
        return sink.getvalue()


def pending(
    items: Sequence[Item],
    known: Mapping[str, Known],
    made_by: tuple[str | None, ...],
    *,
    retry_failed: bool,
) -> tuple[list[Item], str, int]:
    """What is still to be done, what to tell the user of the rest, and how much of it failed.

    A None in ``made_by``, the values of MADE_BY, isn't compared.
    """
    states = [_state(item, known.get(item.name), made_by) for item in items]
    redo = {"new", "changed", "remade"} | ({"failed"} if retry_failed else set())
    todo = [item for item, state in zip(items, states, strict=True) if state in redo]
    counts = Counter(states)
    failed = "and are tried again" if retry_failed else "--retry-failed tries them again"
    told = {
        "done": f"{{}} of {len(items)} are done already",
        "changed": "{} to redo: the file has changed",
        "remade": "{} to redo: made by another model, style or prompt",
        "failed": f"{{}} failed before{'' if retry_failed else ','} {failed}",
    }
    words = "; ".join(text.format(counts[s]) for s, text in told.items() if counts[s])
    return todo, words, 0 if retry_failed else counts["failed"]


def _state(item: Item, known: Known | None, made_by: tuple[str | None, ...]) -> str:
    if known is None:
        return "new"
    if None not in (known.bytes, item.bytes) and (known.bytes, known.mtime_ns) != (
        item.bytes,
        item.mtime_ns,
    ):
        return "changed"
    if known.error:
        return "failed"
    same = all(new in (None, old) for new, old in zip(made_by, known.made_by, strict=True))
    return "done" if same else "remade"


def arrow_schema(kind: type) -> Any:
    """The columns of a dataclass's records, and those of a failure's."""
    import pyarrow as pa

    failure = failure_schema()
    columns = [pa.field("schema", pa.int64()), *_arrow_type(kind), failure.field("error")]
    return pa.schema(columns)


def failure_schema() -> Any:
    """A path, and the error where there is one."""
    import pyarrow as pa

    error = pa.struct([("type", pa.string()), ("message", pa.string())])
    return pa.schema([("path", pa.string()), ("error", error)])


def _arrow_type(hint: Any) -> Any:
    """The type of a field; for a dataclass a struct, which is also a sequence of fields."""
    import pyarrow as pa

    plain = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    if hint in plain:
        return plain[hint]
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        return pa.struct([(f.name, _arrow_type(hints[f.name])) for f in fields(hint)])
    inner = next(arg for arg in get_args(hint) if arg not in (NoneType, ...))
    return pa.list_(_arrow_type(inner)) if get_origin(hint) is tuple else _arrow_type(inner)
