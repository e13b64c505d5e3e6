"""Inputs wherever pyarrow reads: what is found, under which name, and what can't be."""

from pathlib import Path

import pyarrow as pa
import pytest
from conftest import draw
from pyarrow.parquet import write_table

from argus_cli.cluster.fetch import fetched
from argus_cli.cluster.places import Item, Place, find_items
from argus_cli.errors import UsageError
from argus_cli.media.sources import PICTURES

pytest_plugins = ["machines"]


def found(*words: str) -> list[Item]:
    return find_items(words, (), PICTURES, True)


def contents(items: list[Item]) -> list[bytes]:
    with fetched(items, films=False) as sources:
        return [s.file.read_bytes() if isinstance(s.file, Path) else s.file.read() for s in sources]


def test_a_folder_is_found_as_without_a_cluster(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pictures.parent)
    items = found("pictures", "pictures/3.png")
    assert len(items) == 13
    first = items[0]
    assert (first.name, first.at) == ("pictures/0.png", str(pictures / "0.png"))
    assert first.bytes == (pictures / "0.png").stat().st_size


def test_rows_of_parquet_hold_bytes(pictures: Path, tmp_path: Path) -> None:
    some = [(pictures / f"{n}.png").read_bytes() for n in range(5)]
    table = tmp_path / "some.parquet"
    write_table(pa.table({"bytes": some}), table, row_group_size=2)
    items = found(str(table))
    assert [item.name for item in items] == [f"{table}#{n}" for n in range(5)]
    assert contents([items[4], items[1]]) == [some[4], some[1]]


def test_rows_of_parquet_hold_paths(pictures: Path, tmp_path: Path) -> None:
    table = tmp_path / "paths.parquet"
    write_table(pa.table({"path": [str(pictures / "7.png"), "s3://bucket/8.png"]}), table)
    items = found(str(table))
    assert [item.at for item in items] == [str(pictures / "7.png"), "s3://bucket/8.png"]


def test_a_path_names_the_bytes_beside_it(tmp_path: Path) -> None:
    table = tmp_path / "both.parquet"
    write_table(pa.table({"path": ["cat.jpg"], "bytes": [b"x"]}), table)
    (item,) = found(str(table))
    assert (item.name, item.at, item.row) == ("cat.jpg", str(table), 0)


def test_a_list_names_paths(pictures: Path, tmp_path: Path) -> None:
    listing = tmp_path / "list.txt"
    listing.write_text(f"{pictures / '1.png'}\n{pictures / '2.png'}\n")
    items = find_items((), [str(listing)], PICTURES, True)
    assert [Path(item.at).name for item in items] == ["1.png", "2.png"]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("nope.jpg", "no such file"),
        ("gopher://host/x", "gopher"),
        ("bare.parquet", "no column bytes or path"),
        ("torn.parquet", "torn.parquet"),
        ("nope.parquet", "nope.parquet"),
    ],
)
def test_what_cannot_be_found_is_told(
    word: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(pa.table({"caption": ["x"]}), "bare.parquet")
    Path("torn.parquet").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match=says) as error:
        found(word)
    assert "\n" not in str(error.value)


@pytest.mark.cluster
def test_object_storage_is_listed_read_and_written(s3: str) -> None:
    names = ["s3://shelf/a/1 #2?.png", "s3://shelf/a/.hidden.png", "s3://shelf/a/x.txt"]
    for name in names:
        Place.at(name).write_whole(name.encode())
    items = found("s3://shelf/a")
    assert [item.name for item in items] == names[:1]
    assert contents(items) == [names[0].encode()]
    assert items[0].bytes == len(names[0])
    with pytest.raises(UsageError, match="no pictures"):
        found("s3://shelf/nothing")


@pytest.mark.cluster
def test_an_object_that_is_gone_costs_its_own_record(s3: str, tiny_folder: Path) -> None:
    from argus_cli.cluster import CaptionActor

    picture = Place.at("s3://shelf/b.png")
    local = tiny_folder.parent / "b.png"
    draw(90, 60).save(local)
    picture.write_whole(local.read_bytes())
    actor = CaptionActor(str(tiny_folder), dtype="float32", threads=1, timeout=None)
    good, gone = actor.records([Item(str(p), str(p)) for p in (picture, "s3://shelf/gone.png")])
    assert good["caption"] and good["path"] == "s3://shelf/b.png"
    assert (
        gone["error"]["type"] == "ImageError" and "s3://shelf/gone.png" in gone["error"]["message"]
    )
