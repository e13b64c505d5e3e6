"""What runs on a cluster's machines: classes that hold a model and answer batch after batch.

Ray makes them, but nothing here knows it: they take tables or arrays, and pickle.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

from argus_cli.batch import TIMEOUT_S, caption_each
from argus_cli.captioner import Captioner, FilmRequest, Request, load
from argus_cli.cluster.fetch import fetched, item_of
from argus_cli.cluster.parts import Parts, Record, arrow_schema, failure_schema
from argus_cli.cluster.places import Item, os_reason, utf8
from argus_cli.device import available_threads
from argus_cli.errors import ArgusError, InputError, ModelDamaged, ModelMissing
from argus_cli.media.sources import Source
from argus_cli.output.lines import Result, to_record
from argus_cli.schema import Caption, Failure, VideoCaption
from argus_cli.zoo.catalog import ModelFolder, default_model, find, named
from argus_cli.zoo.download import pull

if TYPE_CHECKING:
    import pyarrow as pa


def model_here(model: str | None, *, offline: bool = False) -> ModelFolder:
    """The model on this machine; one of the zoo that isn't there is fetched, unless ``offline``.

    The zoo's lock lets one process fetch a file, for which the others wait. Raises ModelError.
    """
    if model is None:
        return default_model()[0]
    if offline:
        return find(model)
    try:
        return find(model)
    except (ModelMissing, ModelDamaged) as error:  # or another process is at it
        try:
            manifest = named(model)
        except ModelMissing:  # a folder, or unknown
            raise error from None
    return pull(manifest, progress=False)


class CaptionActor:
    """Captions the rows of a dataset: a class for ``Dataset.map_batches``.

    A row has a ``path`` (or URI), the picture's ``bytes``, or both: then ``path`` is its name. Its
    record is as `argus caption` writes it, with an ``error`` where it failed: no row raises, only
    a model that can't be loaded. The other columns are kept.

    The model, a name or a folder as for ``load``, is loaded with the first batch and runs in
    ``threads`` threads, by default as many as Ray has given (OMP_NUM_THREADS).
    """

    record: ClassVar[type] = Caption

    def __init__(
        self,
        model: str | None = None,
        request: Request | FilmRequest | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        quantize: str | None = None,
        threads: int | None = None,
        batch_size: int | None = None,
        timeout: float | None = TIMEOUT_S,
        offline: bool = False,
    ) -> None:
        self._model, self._request, self._offline = model, request, offline
        self.device = device
        self._settings: dict[str, Any] = {"dtype": dtype, "quantize": quantize}
        self._threads, self._batch_size, self._timeout = threads, batch_size, timeout

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "captioner"}

    @cached_property
    def captioner(self) -> Captioner:
        """The model. Raises ModelError, and UsageError for a device that isn't there."""
        folder = model_here(self._model, offline=self._offline)
        return load(folder, device=self.device, threads=self.threads, **self._settings)

    @property
    def threads(self) -> int:
        """How many CPUs are its own."""
        given = os.environ.get("OMP_NUM_THREADS", "")
        return self._threads or (int(given) if given.isdecimal() else available_threads())

    def __call__(self, batch: "Mapping[str, Any] | pa.Table") -> "pa.Table":
        import pyarrow as pa

        table = batch if isinstance(batch, pa.Table) else pa.table(dict(batch))
        rows = table.select([n for n in ("path", "bytes") if n in table.column_names]).to_pylist()
        records = self.records([item_of(row) for row in rows])
        schema = arrow_schema(self.record)
        answers = pa.Table.from_pylist(records, schema=schema)
        for name in table.column_names:
            if name not in (*schema.names, "path", "bytes"):
                answers = answers.append_column(name, table[name])
        return answers

    def records(self, items: Sequence[Item]) -> list[Record]:
        """One for each, in their order. Raises ArgusError when the model can't be loaded."""
        self.captioner  # noqa: B018 - what fails here is no item's fault
        with fetched(items, films=self.record is VideoCaption) as sources:
            results = self._results(sources)
        # A path is made absolute for other machines; messages name it as the user did.
        pairs = zip(items, map(to_record, results), strict=True)
        return [_named(item, record) for item, record in pairs]

    def _results(self, sources: Sequence[Source]) -> list[Result]:
        """What isn't foreseen is a Failure too."""
        done: list[Result] = []
        try:
            with closing(self._each(sources)) as results:  # type: ignore[type-var]
                for result in results:
                    done.append(result)
        except Exception as error:
            if len(sources) == 1:
                source, kind = sources[0], type(error).__name__
                message = f"{source.name}: {os_reason(error)}"
                return [Failure(source.name, kind, message, source.bytes, source.mtime_ns)]
            done += [
                result for source in sources[len(done) :] for result in self._results([source])
            ]
        return done

    def _each(self, sources: Iterable[Source]) -> Iterator[Result]:
        return caption_each(
            self.captioner, sources, cast(Request, self._request or Request()),
            batch_size=self._batch_size, workers=self.threads, timeout=self._timeout,
        )  # fmt: skip


class FilmActor(CaptionActor):
    """The same for films, one after the other."""

    record = VideoCaption

    def _each(self, sources: Iterable[Source]) -> Iterator[Result]:
        for source in sources:
            try:
                film = self.captioner.video(source.file, cast(FilmRequest | None, self._request))
                yield replace(film, path=source.name)
            except InputError as error:
                yield Failure(source.name, type(error).__name__, str(error))


class PartActor:
    """Makes one part of each batch of items, and tells which of them failed.

    What isn't foreseen is Ray's to try again, and in the ``last`` round the items' failure.
    """

    def __init__(self, actor: CaptionActor, parts: Parts, last: bool):
        self._actor, self._parts, self._last = actor, parts, last

    def __call__(self, batch: "pa.Table") -> "pa.Table":
        import pyarrow as pa

        items = [Item(**row | {"at": os.fsdecode(row["at"])}) for row in batch.to_pylist()]
        try:
            told = [{"path": r["path"], "error": r.get("error")} for r in self._part(items)]
        except ArgusError as error:  # the model's or OUT's; Ray would try it again, and wrap it
            told = [{"path": None, "error": {"type": type(error).__name__, "message": str(error)}}]
        return pa.Table.from_pylist(told, schema=failure_schema())

    def _part(self, items: list[Item]) -> list[Record]:
        name = self._parts.name(item.name for item in items)
        records = self._parts.read(name)  # of an actor that died before it could tell
        if records is None:
            records = self._records(items)
            self._parts.write(name, records)
        return records

    def _records(self, items: list[Item]) -> list[Record]:
        try:
            return self._actor.records(items)
        except Exception as error:
            if isinstance(error, ArgusError) or not self._last:
                raise
            kind, reason = type(error).__name__, os_reason(error)
            return [
                to_record(Failure(i.name, kind, f"{i.name}: {reason}", i.bytes, i.mtime_ns))
                for i in items
            ]


def _named(item: Item, record: Record) -> Record:
    if "error" in record and item.name != item.at:
        message = record["error"]["message"].replace(item.at, item.name, 1)
        record["error"]["message"] = utf8(message)
    return record
