"""A folder of records in parts, on disk or in object storage, which many machines fill at once.

A part is there whole or not at all, and its name follows from what is in it: whoever makes it a
second time replaces it by the same. What is in the folder is all that counts when a run goes on.
Where a path has several records, that of the latest run counts, and ``prune`` removes the others.
"""

import logging
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime, timedelta
from hashlib import blake2b
from io import BytesIO
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from argus_cli.cluster.places import Item, Place, os_reason
from argus_cli.errors import ArgusError, UsageError
from argus_cli.output.lines import MADE_BY, Entry, MadeBy, dump, parse_record
from argus_cli.output.pending import Pending
from argus_cli.output.pending import pending as still_to_do

logger = logging.getLogger(__name__)

Record = dict[str, Any]
FORMATS = ("jsonl", "parquet")
_TIME = "%Y%m%dT%H%M%S"
_NAME = re.compile(r"part-(\d{8}T\d{6})-[0-9a-f]{16}\.(jsonl|parquet)")


class Known(NamedTuple):
    """What a record says of its input; ``error`` is None for a caption."""

    part: str
    bytes: int | None
    mtime_ns: int | None
    made_by: MadeBy
    error: Record | None
    older: tuple[str, ...] = ()  # the parts with records that this one replaces


@dataclass(frozen=True)
class Parts:
    """Where the parts of one run go, and how. Can be sent to other machines."""

    folder: str  # a path or URI
    format: str
    kind: type  # the dataclass of the records
    run: str = field(default_factory=lambda: time.strftime(_TIME, time.gmtime()))

    def after(self, known: Mapping[str, Known]) -> "Parts":
        """Those of a run later than all in ``known``, whatever this machine's clock says."""
        latest = _NAME.fullmatch(max((record.part for record in known.values()), default=""))
        if latest is None or latest[1] < self.run:
            return self
        then = datetime.strptime(latest[1], _TIME) + timedelta(seconds=1)
        return replace(self, run=then.strftime(_TIME))

    def name(self, paths: Iterable[str]) -> str:
        """What the part with these inputs is called in this run."""
        digest = blake2b("\0".join(paths).encode("utf-8", "surrogatepass"), digest_size=8)
        return f"part-{self.run}-{digest.hexdigest()}.{self.format}"

    def write(self, name: str, records: Sequence[Record]) -> None:
        """Write a part, in place of the one by that name. Raises ArgusError."""
        try:
            self._write(name, records)
        except OSError as error:
            reason = f"{os_reason(error)}; the same command goes on"
            raise ArgusError(f"--output {self._place.child(name)}: {reason}") from None

    def read(self, name: str) -> list[Record] | None:
        """The records of a part; None if it isn't there. Raises UsageError."""
        from pyarrow import ArrowException

        place = self._place.child(name)
        try:
            return self._records(name, place.read())
        except FileNotFoundError:
            return None
        except (ArrowException, ValueError) as error:
            reason = f"{os_reason(error)}; remove it to caption its inputs anew"
            raise UsageError(f"--output {place}: {reason}") from None
        except OSError as error:
            raise UsageError(f"--output {place}: {os_reason(error)}") from None

    def check_writable(self) -> None:
        """Raise UsageError where nothing can be written, before work is spent on it."""
        try:
            self._write(".argus", [])
        except OSError as error:
            raise UsageError(f"--output {self._place}: {os_reason(error)}") from None
        with suppress(OSError):  # who may write need not be allowed to delete
            self._place.child(".argus").delete()

    def index(self, run: str | None = None) -> dict[str, Known]:
        """What is known of each path, from the parts of all runs or of one. Raises UsageError."""
        found: dict[str, Known] = {}
        makers: dict[MadeBy, MadeBy] = {}
        for part in sorted(self._names(run)):
            for record in self.read(part) or ():
                path, made_by = record["path"], tuple(record.get(key) for key in MADE_BY)
                made_by = makers.setdefault(made_by, made_by)  # few, of many records
                before = found.get(path)
                older = {*before.older, before.part} - {part} if before else ()
                found[path] = Known(
                    part, record.get("bytes"), record.get("mtime_ns"), made_by,
                    record.get("error"), tuple(older),
                )  # fmt: skip
        return found

    def prune(self, known: Mapping[str, Known], redone: Collection[str] = ()) -> None:
        """Remove the records that later ones replace: in ``known``, or ``redone`` since.

        Where that isn't allowed, or another run is at it too, they stay: the later one counts.
        """
        stale: dict[str, set[str]] = {}
        for path, record in known.items():
            for part in (*record.older, *([record.part] if path in redone else ())):
                stale.setdefault(part, set()).add(path)
        for part, paths in stale.items():
            try:
                self._without(part, paths)
            except FileNotFoundError:
                continue
            except (ArgusError, OSError) as error:
                logger.warning("%s: replaced records stay, %s", self.folder, os_reason(error))
                return

    def _without(self, part: str, paths: Collection[str]) -> None:
        kept = [r for r in self.read(part) or () if r["path"] not in paths]
        if kept:
            self.write(part, kept)
        else:
            self._place.child(part).delete()

    @property
    def _place(self) -> Place:
        return Place.at(self.folder)

    def _names(self, run: str | None) -> Iterator[str]:
        for name in self._place.names():
            if (match := _NAME.fullmatch(name)) and run in (None, match[1]):
                yield name

    def _write(self, name: str, records: Sequence[Record]) -> None:
        if name.endswith(".parquet"):
            data = self._parquet(records)
        else:
            data = "".join(dump(record) + "\n" for record in records).encode()
        self._place.child(name).write_whole(data)

    def _parquet(self, records: Sequence[Record]) -> bytes:
        import pyarrow as pa
        from pyarrow.parquet import write_table

        sink = BytesIO()
        write_table(pa.Table.from_pylist(list(records), schema=arrow_schema(self.kind)), sink)
        return sink.getvalue()

    def _records(self, name: str, data: bytes) -> list[Record]:
        if not name.endswith(".parquet"):
            return [parse_record(line) for line in data.decode().splitlines()]
        from pyarrow.parquet import read_table

        rows: list[Record] = read_table(BytesIO(data)).to_pylist()
        if any(not isinstance(row.get("path"), str) for row in rows):
            raise ValueError("not records of argus")
        return [{k: v for k, v in row.items() if k != "error" or v} for row in rows]


def pending(
    items: Sequence[Item],
    known: Mapping[str, Known],
    made_by: MadeBy,
    *,
    retry_failed: bool,
) -> Pending[Item]:
    """What is still to be done, by what is known: see output.pending."""

    def entry(item: Item) -> Entry | None:
        """Where one of them tells no size, the file is taken to be the same."""
        if (record := known.get(item.name)) is None:
            return None
        file = item if None in (record.bytes, item.bytes) else record
        made = None if record.error else record.made_by
        return Entry(item.name, file.bytes, file.mtime_ns, made)

    return still_to_do(items, entry, made_by, retry_failed=retry_failed)


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
