"""Inputs wherever pyarrow reads: what is found, under which name, and what can't be."""

import os
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("ray", reason="Ray isn't installed; pip install 'argus-vlm[ray]'")
from conftest import draw
from pyarrow.parquet import write_table

from argus_cli.cluster import fetch, places
from argus_cli.cluster.fetch import fetched
from argus_cli.cluster.places import Item, Place, find_items, plain
from argus_cli.errors import ImageError, UsageError
from argus_cli.media.reels import seekable
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


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\0"])
def test_a_list_is_read_as_without_a_cluster(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    monkeypatch.chdir(pictures)
    Path("-").write_bytes(Path("0.png").read_bytes())
    lines = [b"./1.png", b"1.png", b"-", b"s3://shelf/x.parquet", b""]
    (tmp_path / "list").write_bytes(b"\xef\xbb\xbf" + end.join(lines))
    monkeypatch.setattr(places, "_far", lambda word, *_: [Item(word, word)])
    items = find_items((), [str(tmp_path / "list")], PICTURES, True)
    assert [item.name for item in items] == ["./1.png", "./-", "s3://shelf/x.parquet"]


def test_a_list_on_stdin(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = BytesIO(bytes(pictures / "1.png"))
    monkeypatch.setattr("sys.stdin", TextIOWrapper(lines))
    assert [item.at for item in find_items((), ["-"], PICTURES, True)] == [str(pictures / "1.png")]


def test_a_lists_missing_path_names_the_list(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("nope-*.png")
    with pytest.raises(UsageError, match="--from .*list: nope-.*: no such file"):
        find_items((), [str(tmp_path / "list")], PICTURES, True)


def test_a_file_counts_once_by_all_its_names(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pictures)
    uri = (pictures / "0.png").as_uri()
    assert [item.name for item in found("./0.png", "0.png", uri)] == ["./0.png"]


def test_an_empty_folder_is_a_warning(
    pictures: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "empty").mkdir()
    assert len(found(str(pictures), str(tmp_path / "empty"))) == 13
    assert "empty: no pictures in it" in caplog.text


def test_rows_of_two_tables_with_the_same_names_all_count(tmp_path: Path) -> None:
    tables = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for table in tables:
        names = ["1.jpg", "2.jpg"]
        rows = [f"{table.stem}{name}".encode() for name in names]
        write_table(pa.table({"path": names, "bytes": rows}), table)
    items = found(*map(str, tables))
    names = ["1.jpg", "2.jpg", f"{tables[1]}#0", f"{tables[1]}#1"]
    assert [item.name for item in items] == names
    assert contents(items) == [b"a1.jpg", b"a2.jpg", b"b1.jpg", b"b2.jpg"]


def test_a_folder_of_tables_holds_their_rows(tmp_path: Path) -> None:
    for name in ("0.parquet", "1.parquet"):
        write_table(pa.table({"bytes": [name.encode()]}), tmp_path / name)
    (tmp_path / "_SUCCESS").touch()
    assert contents(found(str(tmp_path))) == [b"0.parquet", b"1.parquet"]
    draw(8, 8).save(tmp_path / "cover.png")
    assert [item.name for item in found(str(tmp_path))] == [str(tmp_path / "cover.png")]


def test_a_file_uri_is_its_path(tmp_path: Path) -> None:
    picture = tmp_path / "my cat%.png"
    picture.write_bytes(b"x")
    assert contents(found(tmp_path.as_uri())) == contents(found(picture.as_uri())) == [b"x"]
    assert Place.at(picture.as_uri()).read() == b"x"
    assert plain(f"file:{tmp_path}") == plain(f"FILE://localhost{tmp_path}") == str(tmp_path)


def test_a_name_that_is_no_utf_8_is_spelled_out(tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"caf\xe9.png")
    file.touch()
    (item,) = found(str(tmp_path))
    assert item.name == f"{tmp_path}/caf\\xe9.png"
    assert item.at == str(file)


def test_paths_in_bytes_are_text(tmp_path: Path) -> None:
    table = tmp_path / "binary.parquet"
    write_table(pa.table({"path": [b"/cat.png"]}), table)
    assert [item.at for item in found(str(table))] == ["/cat.png"]


def test_a_table_that_has_shrunk_costs_its_rows(tmp_path: Path) -> None:
    table = tmp_path / "some.parquet"
    write_table(pa.table({"bytes": [b"x"]}), table)
    with pytest.raises(ImageError, match="nine: there is no row 9"):
        contents([Item("nine", str(table), 9)])


def test_a_storage_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Down:
        def get_file_info(self, wanted: object) -> None:
            raise OSError("unreachable\nnow")

    monkeypatch.setattr(places, "_filesystem", lambda host: (Down(), "shelf"))
    with pytest.raises(UsageError, match="s3://shelf/a: unreachable now"):
        found("s3://shelf/a")


def test_few_objects_wait_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(fetch, "_read", lambda at: asked.append(at) or at.encode())
    items = [Item(f"s3://shelf/{n}", f"s3://shelf/{n}") for n in range(40)]
    with fetched(items, films=False) as sources:
        assert [sources[n].file.read() for n in (30, 0)] == [b"s3://shelf/30", b"s3://shelf/0"]
        assert sources[0].file.read() == b"s3://shelf/0"  # again, not kept
    assert len(asked) <= fetch.FETCHERS + 3
    assert len(set(asked)) == len(asked) - 1


def test_a_film_begins_anew_when_it_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "film.mp4").write_bytes(b"film")
    monkeypatch.setattr(fetch, "is_uri", lambda at: True)
    item = Item("film", str(tmp_path / "film.mp4"))
    with fetched([item], films=True) as (source,):
        for _ in range(2):
            with seekable(source.file) as stream:
                stream.seek(0)
                assert stream.read() == b"film"


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
