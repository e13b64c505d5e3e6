"""Parts of records: whole or not at all, the same again under the same name, one record a path."""

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

pytest.importorskip("ray", reason="Ray isn't installed; pip install 'argus-vlm[ray]'")

from argus_cli.cluster import places
from argus_cli.cluster.parts import FORMATS, Parts, Record, pending
from argus_cli.cluster.places import Item
from argus_cli.errors import ArgusError, UsageError
from argus_cli.output.lines import to_record
from argus_cli.schema import (
    Caption,
    Failure,
    Frame,
    Segment,
    Timings,
    VideoCaption,
    VideoTimings,
)  # fmt: skip

pytest_plugins = ["machines"]

CAT = Caption(
    path="cat.jpg", caption="A cat.", width=2, height=1, tiles=1, grid=(0, 0), image_tokens=64,
    prompt_tokens=70, new_tokens=3, finish_reason="stop", confidence=-0.5, model="glimpse",
    revision="1", dtype="float32", device="cpu", style="caption", prompt="?", seed=None,
    seconds=Timings(1.0, 0.5, 0.25, 0.0, 0.0), bytes=5, mtime_ns=7,
)  # fmt: skip
TORN = Failure("torn.jpg", "ImageError", "torn.jpg: cut", 3, 4)
FILM = VideoCaption(
    path="film.mp4", duration=2.5, width=4, height=3, frames=(Frame(0.0, 0), Frame(1.5, None)),
    frames_reused=0, segments=(Segment(0.0, 2.5, "A cat.", -0.5),), summary=None, model="glimpse",
    revision="1", dtype="float32", device="cpu", prompt="?", seed=3,
    seconds=VideoTimings(1.0, 1.0, 1.0),
)  # fmt: skip
MADE_BY = ("glimpse", "1", "caption", "?")


def parts(folder: Path, format: str = "jsonl", run: str = "20260101T000000") -> Parts:
    return Parts(str(folder), format, Caption, run)


def put(some: Parts, *results: Caption | Failure | VideoCaption) -> str:
    records = [to_record(result) for result in results]
    name = some.name(r["path"] for r in records)
    some.write(name, records)
    return name


def without_null_error(record: Record) -> Record:
    return {k: v for k, v in record.items() if k != "error" or v}


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_captions_and_failures_come_back(tmp_path: Path, format: str) -> None:
    some = parts(tmp_path, format)
    cat, torn = some.read(put(some, CAT, TORN)) or ()
    assert cat == to_record(CAT)
    assert {k: v for k, v in torn.items() if v is not None} == to_record(TORN)


def test_films_come_back_from_parquet(tmp_path: Path) -> None:
    some = replace(parts(tmp_path, "parquet"), kind=VideoCaption)
    assert some.read(put(some, FILM)) == [to_record(FILM)]


def test_all_parquet_parts_have_the_same_columns(tmp_path: Path) -> None:
    from pyarrow.parquet import read_schema

    some = parts(tmp_path, "parquet")
    first, second = (read_schema(tmp_path / put(some, result)) for result in (CAT, TORN))
    assert first == second


def test_the_same_inputs_make_the_same_part_again(tmp_path: Path) -> None:
    some = parts(tmp_path)
    assert put(some, CAT, TORN) == put(some, CAT, TORN)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_part_that_cannot_be_finished_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "uuid4", lambda: UUID("0" * 32))
    (tmp_path / f".{parts(tmp_path).name(['cat.jpg'])}.{'0' * 32}").mkdir()
    with pytest.raises(ArgusError, match="--output .*; the same command goes on"):
        put(parts(tmp_path), CAT)
    assert parts(tmp_path).index() == {}


def test_strangers_files_are_not_parts(tmp_path: Path) -> None:
    put(parts(tmp_path), CAT)
    (tmp_path / "notes.jsonl").write_text("{}")
    (tmp_path / ".part-20260101T000000-0123456789abcdef.jsonl.7").write_text("{")
    assert list(parts(tmp_path).index()) == ["cat.jpg"]


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_the_record_of_the_latest_run_counts_and_stays(tmp_path: Path, format: str) -> None:
    put(parts(tmp_path, format), CAT, TORN)
    new = parts(tmp_path, format, "20260102T000000")
    put(new, replace(CAT, caption="A dog.", bytes=6))
    assert new.index()["cat.jpg"].bytes == 6
    new.prune(new.index())
    records = [r for p in sorted(tmp_path.iterdir()) for r in new.read(p.name) or ()]
    assert [(r["path"], r.get("caption")) for r in records] == [
        ("torn.jpg", None),
        ("cat.jpg", "A dog."),
    ]


def test_a_part_of_which_nothing_is_left_goes(tmp_path: Path) -> None:
    put(parts(tmp_path), CAT)
    new = parts(tmp_path, run="20260102T000000")
    kept = put(new, CAT, TORN)
    new.prune(new.index())
    assert [p.name for p in tmp_path.iterdir()] == [kept]


@pytest.mark.parametrize(
    ("change", "retry", "todo", "says"),
    [
        ({}, False, [], "1 of 2 are done already; 1 failed before, --retry-failed"),
        ({}, True, ["torn.jpg"], "1 failed before and are tried again"),
        ({"bytes": 6}, False, ["cat.jpg"], "1 to redo: the file has changed"),
        ({"mtime_ns": 8}, False, ["cat.jpg"], "1 to redo: the file has changed"),
        ({"name": "new.jpg"}, False, ["new.jpg"], "1 failed before"),
    ],
)
def test_what_is_still_to_be_done(
    tmp_path: Path, change: dict[str, object], retry: bool, todo: list[str], says: str
) -> None:
    put(parts(tmp_path), CAT, TORN)
    cat = Item("cat.jpg", "/cat.jpg", None, 5, 7)
    items = [replace(cat, **change), Item("torn.jpg", "/torn.jpg", None, 3, 4)]
    found, told, failed = pending(items, parts(tmp_path).index(), MADE_BY, retry_failed=retry)
    assert [item.name for item in found] == todo
    assert says in told and failed == (0 if retry else 1)


def test_another_model_makes_it_anew(tmp_path: Path) -> None:
    put(parts(tmp_path), CAT)
    cat = Item("cat.jpg", "/cat.jpg", None, 5, 7)
    known = parts(tmp_path).index()
    assert pending([cat], known, ("other", *MADE_BY[1:]), retry_failed=False)[0] == [cat]
    assert pending([cat], known, (*MADE_BY[:3], None), retry_failed=False)[0] == []


def test_what_was_redone_replaces_its_old_record(tmp_path: Path) -> None:
    old = put(parts(tmp_path), CAT, TORN)
    known = parts(tmp_path).index()
    new = parts(tmp_path, run="20260102T000000")
    put(new, CAT)
    new.prune(known, {"cat.jpg"})
    assert [r["path"] for r in new.read(old) or ()] == ["torn.jpg"]


def test_a_run_comes_after_those_of_a_clock_that_is_ahead(tmp_path: Path) -> None:
    put(parts(tmp_path, run="20991231T235959"), CAT)
    some = parts(tmp_path)
    later = some.after(some.index())
    assert later.run == "21000101T000000"
    assert some.after({}).run == some.run
    assert later.after(some.index()).run == later.run


@pytest.mark.parametrize(("error", "warned"), [(PermissionError, 1), (FileNotFoundError, 0)])
def test_what_cannot_be_removed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    error: type[OSError], warned: int,
) -> None:  # fmt: skip
    def refused(place: places.Place) -> None:
        raise error(1, "not so")

    put(parts(tmp_path), CAT)
    new = parts(tmp_path, run="20260102T000000")
    put(new, CAT)
    monkeypatch.setattr(places.Place, "delete", refused)
    new.check_writable()
    new.prune(new.index())
    assert len(caplog.messages) == warned and all("not so" in m for m in caplog.messages)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("torn", [b"{", b"PAR1", b'{"path": 1}\n', b"\xff"])
def test_a_damaged_part_is_named(tmp_path: Path, format: str, torn: bytes) -> None:
    some = parts(tmp_path, format)
    name = put(some, CAT)
    (tmp_path / name).write_bytes(torn)
    with pytest.raises(UsageError, match=f"{name}: .*; remove it") as error:
        some.index()
    assert "\n" not in str(error.value)


def test_a_folder_that_cannot_be_written_is_the_command_lines_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--output .*file"):
        parts(tmp_path / "file").check_writable()
