"""What folders, globs and lists bring: everything that is a picture, once, in a steady order."""

import io
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from argus_cli.errors import UsageError
from argus_cli.media.sources import (
    FILMS,
    PICTURES,
    Source,
    falls_to,
    parse_shard,
    resolve,
    spare_media,
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test stands in an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def touch(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(os.fsencode(name))


def names(*inputs: str, **options: object) -> list[str]:
    return [source.name for source in resolve(inputs, **options)]  # type: ignore[arg-type]


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


def test_a_folder_is_walked_in_natural_order() -> None:
    touch("in/img10.jpg", "in/img2.jpg", "in/IMG1.JPG", "in/b/1.png", "in/a.webp", "in/note.txt")
    expected = ["in/a.webp", "in/b/1.png", "in/IMG1.JPG", "in/img2.jpg", "in/img10.jpg"]
    assert names("in") == names("in/") == expected


def test_names_that_differ_in_case_or_zeros_have_an_order_too() -> None:
    touch("in/b.jpg", "in/B.jpg", "in/a01.jpg", "in/a1.jpg")
    assert names("in") == ["in/a01.jpg", "in/a1.jpg", "in/B.jpg", "in/b.jpg"]


def test_the_current_folder_adds_nothing_to_the_names() -> None:
    touch("sub/x.jpg")
    assert names(".") == ["sub/x.jpg"]


def test_not_recursive_stays_in_the_folder() -> None:
    touch("in/1.jpg", "in/sub/2.jpg")
    assert names("in", recursive=False) == ["in/1.jpg"]


def test_a_source_knows_size_time_and_sub_folder() -> None:
    touch("in/a/b/x.jpg")
    info = os.stat("in/a/b/x.jpg")
    path = Path("in/a/b/x.jpg")
    [source] = resolve(["in"])
    assert source == Source(str(path), path, info.st_size, info.st_mtime_ns, "a/b")
    [named] = resolve(["in/a/b/x.jpg"])
    assert (named.bytes, named.mtime_ns, named.folder) == (info.st_size, info.st_mtime_ns, "")


@pytest.mark.parametrize(
    "junk",
    [
        ".hidden.jpg", "._x.jpg", ".Trash-1000/x.jpg", "@eaDir/x.jpg/SYNOPHOTO_THUMB_M.jpg",
        "#recycle/x.jpg", "#snapshot/x.jpg", "__MACOSX/x.jpg", "$RECYCLE.BIN/x.jpg",
        "lost+found/x.jpg", "System Volume Information/x.jpg", "Thumbs.db", "desktop.ini",
    ],
)  # fmt: skip
def test_droppings_are_skipped(junk: str) -> None:
    touch("in/x.jpg", f"in/deep/{junk}")
    assert names("in") == names("in/**/*") == ["in/x.jpg"]


def test_what_is_named_is_taken_whatever_it_is_called() -> None:
    touch(".hidden/@eaDir/x.jpg", "photo.unknown")
    assert names(".hidden/@eaDir", "photo.unknown") == [".hidden/@eaDir/x.jpg", "photo.unknown"]


def test_every_suffix_of_the_formats_that_we_open_is_looked_for() -> None:
    formats = {"JPEG", "MPO", "PNG", "WEBP", "AVIF", "GIF", "TIFF", "BMP", "PPM"}
    suffixes = {end for end, name in Image.registered_extensions().items() if name in formats}
    assert suffixes <= set(PICTURES.suffixes)


def test_films_have_suffixes_of_their_own() -> None:
    touch("in/x.jpg", "in/clip.MOV")
    assert names("in", kind=FILMS) == ["in/clip.MOV"]


def test_loops_of_links_end() -> None:
    touch("in/a/x.jpg")
    for link, target in (("in/loop", "."), ("in/a/up", ".."), ("in/self", "self")):
        os.symlink(target, link)
    assert names("in") == ["in/a/x.jpg"]


def test_a_linked_folder_is_followed() -> None:
    touch("elsewhere/x.jpg", "in/y.jpg")
    os.symlink("../elsewhere", "in/link")
    assert names("in") == ["in/link/x.jpg", "in/y.jpg"]


def test_a_link_to_nothing_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    touch("in/x.jpg")
    os.symlink("gone.jpg", "in/broken.jpg")
    assert names("in") == ["in/x.jpg"]
    assert caplog.messages == ["in/broken.jpg: left out, No such file or directory"]


def test_a_folder_that_cannot_be_read_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    touch("in/locked/y.jpg", "in/x.jpg")
    scandir = os.scandir

    def refuse(path: Path):  # type: ignore[no-untyped-def]
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)  # root may read anything
    assert names("in") == ["in/x.jpg"]
    assert caplog.messages == ["in/locked: left out, Permission denied"]


def test_pipes_in_a_folder_are_no_pictures() -> None:
    touch("in/x.jpg")
    os.mkfifo("in/pipe.jpg")
    assert names("in") == ["in/x.jpg"]


@pytest.mark.parametrize(
    "name", ["tab\tnew\nline.jpg", "müll 図 🐈.jpg", os.fsdecode(b"\xff\xfe.jpg")]
)
def test_any_name_works_all_the_way(name: str) -> None:
    touch(f"in/{name}")
    [source] = resolve(["in"])
    assert falls_to((1, 1), source)
    assert source.name == f"in/{name}"
    assert isinstance(source.file, Path)
    assert source.file.read_bytes() == os.fsencode(f"in/{name}")


def test_a_file_is_given_once_under_its_first_name() -> None:
    touch("in/a/x.jpg", "in/y.jpg")
    os.symlink("a/x.jpg", "in/z.jpg")
    assert names("in/z.jpg", "in", "in/../in/y.jpg", "in/**/x.jpg") == ["in/z.jpg", "in/y.jpg"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("in/*.jpg", ["in/2.jpg", "in/10.jpg"]),
        ("in/**/*.jpg", ["in/2.jpg", "in/10.jpg", "in/a/3.jpg", "in/a/b/4.jpg"]),
        ("in/**/b/*", ["in/a/b/4.jpg"]),
        ("in/?/*", ["in/a/3.jpg", "in/a/5.png"]),
        ("i[mn]/a/[!3].*", ["in/a/5.png"]),
        ("**", ["in/2.jpg", "in/10.jpg", "in/a/3.jpg", "in/a/5.png", "in/a/b/4.jpg"]),
    ],
)
def test_globs(pattern: str, expected: list[str]) -> None:
    touch("in/2.jpg", "in/10.jpg", "in/a/3.jpg", "in/a/5.png", "in/a/b/4.jpg", "in/a/note.txt")
    assert names(pattern) == expected


def test_a_glob_survives_loops_of_links() -> None:
    touch("in/x.jpg")
    os.symlink(".", "in/one")
    os.symlink(".", "in/two")
    assert names("in/**/*.jpg") == ["in/x.jpg"]


def test_a_name_that_exists_is_no_pattern() -> None:
    touch("photo[1].jpg", "photo1.jpg")
    assert names("photo[1].jpg") == ["photo[1].jpg"]


@pytest.mark.parametrize(
    "data",
    [b"b.jpg\na b.jpg\n", b"b.jpg\r\n\r\na b.jpg", b"\xef\xbb\xbfb.jpg\n\na b.jpg\n",
     b"b.jpg\0a b.jpg\0"],
)  # fmt: skip
def test_lists_of_paths(data: bytes) -> None:
    touch("a b.jpg", "b.jpg")
    Path("list").write_bytes(data)
    assert names(lists=["list"]) == ["b.jpg", "a b.jpg"]


def test_null_bytes_let_a_name_hold_line_breaks() -> None:
    touch("a\r\nb.jpg", "c.jpg")
    Path("list").write_bytes(b"a\r\nb.jpg\0c.jpg")
    assert names(lists=["list"]) == ["a\r\nb.jpg", "c.jpg"]


def test_a_list_may_come_from_stdin_and_name_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    touch("in/x.jpg", "y.jpg", os.fsdecode(b"\xff.jpg"))
    stdin(monkeypatch, b"in\n\xff.jpg\n")
    assert names("y.jpg", lists=["-"]) == ["y.jpg", "in/x.jpg", "\udcff.jpg"]


def test_paths_in_a_list_keep_their_folders_apart(here: Path) -> None:
    touch("a/x.jpg", "b/x.jpg")
    Path("list").write_text(f"a/x.jpg\n../here/b/x.jpg\n{here}/list\n")
    folders = [source.folder for source in resolve([], lists=["list"])]
    assert folders == ["a", "here/b", str(here)[1:]]


def test_stdin_holds_one_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, b"bytes")
    [source] = resolve(["-"])
    assert source == Source("<stdin>", sys.stdin.buffer)


@pytest.mark.parametrize(
    ("inputs", "lists", "message"),
    [
        (["nope.jpg"], [], "nope.jpg: no such file"),
        ([""], [], "'': no such file"),
        (["nope/*.jpg"], [], r"nope/\*.jpg: no such file, and no pictures match it"),
        (["x.jpg/y"], [], "x.jpg/y: Not a directory"),
        (["n" * 300], [], "n: File name too long"),
        (["a\0b"], [], "null byte"),
        (["empty"], [], r"empty: no pictures in it \(.jpg .jpeg "),
        ([], ["nope"], "--from nope: no such file"),
        ([], ["list"], "--from list: gone.jpg: no such file"),
        ([], ["/dev/null"], "--from /dev/null: no pictures in it"),
        (["-"], ["-"], "- can be given once"),
        (["-", "-"], [], "- can be given once"),
    ],
)
def test_impossible_requests(inputs: list[str], lists: list[str], message: str) -> None:
    touch("x.jpg", "empty/note.txt")
    Path("list").write_text("x.jpg\ngone.jpg\n")
    with pytest.raises(UsageError, match=message):
        resolve(inputs, lists=lists)


def test_an_empty_folder_among_others_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    touch("empty/note.txt", "in/x.jpg")
    assert names("empty", "in") == ["in/x.jpg"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert caplog.messages[0].startswith("empty: no pictures in it")


def part(number: int, count: int, *inputs: str) -> list[str]:
    return [source.name for source in resolve(inputs) if falls_to((number, count), source)]


def test_shards_part_the_files() -> None:
    touch(*(f"in/{i % 3}/{i}.jpg" for i in range(60)))
    parts = [part(number, 4, "in") for number in range(1, 5)]
    assert all(parts)
    assert sorted(sum(parts, [])) == sorted(names("in"))


@pytest.mark.parametrize("root", ["in", "mnt/elsewhere"])
def test_a_shard_is_the_same_under_any_mount_point(root: str) -> None:
    """Written down once: machines with different versions of argus must agree."""
    touch(f"{root}/a/b.jpg", *(f"{root}/{i}.jpg" for i in range(4)))
    assert part(1, 3, root) == [f"{root}/{name}" for name in ("1.jpg", "3.jpg", "a/b.jpg")]


@pytest.mark.parametrize("umlaut", ["\u00dc", "U\u0308"])
def test_a_shard_is_the_same_however_a_name_is_spelled(umlaut: str) -> None:
    touch(*(f"in/{umlaut}{i}.jpg" for i in range(6)))
    assert part(1, 3, "in") == [f"in/{umlaut}4.jpg"]


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "1/0", "a/b", "-1/4", "1/4/2", "", "1/ 4"])
def test_shards_that_do_not_exist(text: str) -> None:
    with pytest.raises(UsageError, match="--shard .*: not I/N"):
        parse_shard(text)


def test_a_shard_is_written_as_a_fraction() -> None:
    assert parse_shard("2/4") == (2, 4)


@pytest.mark.parametrize("link", [os.symlink, os.link, None])
def test_an_input_is_never_an_output(link: Any, tmp_path: Path) -> None:
    given, out = tmp_path / "given", tmp_path / "given"
    given.write_bytes(b"x")
    if link:
        out = tmp_path / "out.txt"
        link(given, out)
    with pytest.raises(UsageError, match="is an input"):
        spare_media(out, [tmp_path / "gone", None, given])
    spare_media(tmp_path / "new.txt", [given])


def test_a_link_to_a_picture_is_no_output(tmp_path: Path) -> None:
    (tmp_path / "other.jpg").write_bytes(b"x")
    (tmp_path / "out.txt").symlink_to(tmp_path / "other.jpg")
    with pytest.raises(UsageError, match="has the name of a picture"):
        spare_media(tmp_path / "out.txt")
