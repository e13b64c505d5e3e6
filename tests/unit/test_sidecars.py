"""Captions beside pictures: which file is whose, what stays, and no picture is ever touched."""

import errno
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from argus_cli.errors import ArgusError, InputError, UsageError
from argus_cli.media.sources import Source, resolve
from argus_cli.output.sidecars import Mode, plan
from argus_cli.schema import Caption, Timings

CAPTION = Caption(
    path="x.jpg", caption="A dog runs.", width=8, height=8, tiles=1, grid=(0, 0), image_tokens=64,
    prompt_tokens=80, new_tokens=5, finish_reason="stop", confidence=-0.5, model="tiny",
    revision="local", dtype="float32", device="cpu", style="caption",
    prompt="Describe.", seed=None,
    seconds=Timings(0, 0, 0, 0, 0),
)  # fmt: skip


def say(text: str) -> Caption:
    return replace(CAPTION, caption=text)


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Source]]:
    """Makes pictures in an empty folder and resolves them, by name unless told otherwise."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def make(*names: str, inputs: tuple[str, ...] = ()) -> list[Source]:
        for name in names:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_bytes(b"\xff\xd8\xff\0")
        return resolve(inputs or names)

    return make


Make = Callable[..., list[Source]]


@pytest.mark.parametrize("extension", ["txt", ".txt", "caption", "a.b"])
def test_a_sidecar_lies_beside_its_picture(pictures: Make, extension: str) -> None:
    [source] = pictures("in/my.photo.jpg")
    path = plan([source], extension).write(source, CAPTION)
    assert path == Path(f"in/my.photo.{extension.removeprefix('.')}")
    assert path.read_bytes() == b"A dog runs.\n"
    assert sorted(os.listdir("in")) == sorted(["my.photo.jpg", path.name])


def test_a_folder_of_sidecars_mirrors_the_folder_that_was_named(pictures: Make) -> None:
    sources = pictures("in/1.jpg", "in/a/b/1.jpg", inputs=("in",))
    sidecars = plan(sources, "txt", folder=Path("out"))
    paths = [sidecars.write(source, CAPTION) for source in sources]
    assert paths == [Path("out/1.txt"), Path("out/a/b/1.txt")]
    assert os.listdir("in/a/b") == ["1.jpg"]


@pytest.mark.parametrize(
    "names", [("a.jpg", "a.png"), ("a.jpg", "A.JPG"), ("Ü.jpg", "U\u0308.png"), ("a.JPG", "A.webp")]
)
def test_two_pictures_never_share_a_sidecar(pictures: Make, names: tuple[str, ...]) -> None:
    sources = pictures(*names)
    with pytest.raises(UsageError, match="would share") as error:
        plan(sources, "txt")
    assert all(name in str(error.value) for name in names)
    sidecars = plan(sources, "txt", full_name=True)
    assert [sidecars.write(s, CAPTION) for s in sources] == [Path(f"{n}.txt") for n in names]


def test_the_way_out_of_a_shared_sidecar_is_told(pictures: Make) -> None:
    with pytest.raises(UsageError, match="a.jpg and a.png .* --sidecar-full-name tells them"):
        plan(pictures("a.jpg", "a.png"), "txt")
    twins = pictures("a/1.jpg", "b/1.jpg")
    with pytest.raises(UsageError, match="out/1.txt; rename one, or name the folder that holds"):
        plan(twins, "txt", folder=Path("out"))
    assert plan(pictures(inputs=(".",)), "txt", folder=Path("out"), full_name=True)


def test_full_names_in_another_folder_may_not_differ_in_case_alone(pictures: Make) -> None:
    sources = pictures("a.jpg", "A.jpg")
    with pytest.raises(UsageError, match="would share"):
        plan(sources, "txt", folder=Path("out"), full_name=True)


def test_pictures_named_through_a_link_share_sidecars_too(pictures: Make) -> None:
    pictures("in/a.jpg", "in/a.png")
    os.symlink("in", "link")
    with pytest.raises(UsageError, match="would share"):
        plan(resolve(["in/a.jpg", "link/a.png"]), "txt")


@pytest.mark.parametrize(
    ("names", "extension", "options"),
    [
        (("a.jpg",), "jpg", {}),
        (("a.jpg",), "JPG", {}),
        (("a.txt", "b.jpg"), "txt", {}),
        (("a.jpg", "a.jpg.png"), "png", {"full_name": True}),
        (("in/a.jpg", "out/a.png"), "png", {"folder": Path("out")}),
    ],
)
def test_a_sidecar_is_no_picture(
    pictures: Make, names: tuple[str, ...], extension: str, options: dict[str, object]
) -> None:
    with pytest.raises(UsageError, match="is a picture itself"):
        plan(pictures(*names), extension, **options)  # type: ignore[arg-type]


def test_a_picture_that_was_not_named_is_safe_as_well(pictures: Make) -> None:
    [source, other] = pictures("a.jpg", "a.png")
    before = Path("a.png").read_bytes()
    with pytest.raises(InputError, match="a.png: left as it is, no text file"):
        plan([source], "png", mode=Mode.overwrite).write(source, CAPTION)
    assert Path("a.png").read_bytes() == before


@pytest.mark.parametrize("extension", ["", ".", "a/b", "../x", "a\\b", "a\0"])
def test_what_is_no_extension(pictures: Make, extension: str) -> None:
    with pytest.raises(UsageError, match="not an extension such as txt"):
        plan(pictures("a.jpg"), extension)


def test_stdin_has_no_sidecar() -> None:
    source = Source("<stdin>", sys.stdin.buffer)
    sidecars = plan([source], "txt")
    assert sidecars.todo(source) and sidecars.write(source, CAPTION) is None


def test_what_is_there_is_kept_and_costs_no_work(pictures: Make) -> None:
    kept, fresh = pictures("a.jpg", "b.jpg")
    Path("a.txt").write_text("Anna at the beach")
    sidecars = plan([kept, fresh], "txt")
    assert [sidecars.todo(source) for source in (kept, fresh)] == [False, True]
    assert sidecars.write(kept, CAPTION) is None
    assert Path("a.txt").read_text() == "Anna at the beach"


@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_blank_sidecar_holds_nothing_to_keep(pictures: Make, blank: str) -> None:
    [source] = pictures("a.jpg")
    Path("a.txt").write_text(blank)
    sidecars = plan([source], "txt")
    assert sidecars.todo(source) and sidecars.write(source, CAPTION)
    assert Path("a.txt").read_text() == "A dog runs.\n"


@pytest.mark.parametrize(
    ("mode", "style", "old", "new", "expected"),
    [
        (Mode.overwrite, "caption", "Anna", "A dog.", "A dog."),
        (Mode.append, "caption", "Anna\n", "A dog.", "Anna A dog."),
        (Mode.append, "caption", "Anna A dog.\n", "A dog.", "Anna A dog."),
        (Mode.append, "caption", "", "A dog.", "A dog."),
        (Mode.prepend, "caption", "\ufeffAnna", "A dog.", "A dog. Anna"),
        (Mode.prepend, "caption", "A dog. Anna", "A dog.", "A dog. Anna"),
        (Mode.append, "tags", "anna, Dog", "dog, grass", "anna, Dog, grass"),
        (Mode.append, "tags", "anna, dog, grass", "dog, grass", "anna, dog, grass"),
        (Mode.prepend, "tags", "anna,dog,", "dog, grass", "dog, grass, anna"),
        (Mode.append, "caption", "line one\nline two\n", "A dog.", "line one\nline two A dog."),
    ],
)
def test_a_text_meets_one_that_is_there(
    pictures: Make, mode: Mode, style: str, old: str, new: str, expected: str
) -> None:
    [source] = pictures("a.jpg")
    Path("a.txt").write_text(old)
    sidecars = plan([source], "txt", mode=mode, style=style)
    assert sidecars.todo(source)
    sidecars.write(source, say(new))
    assert Path("a.txt").read_text() == f"{expected}\n"


def test_bytes_that_are_no_utf8_stay_when_something_is_added(pictures: Make) -> None:
    [source] = pictures("a.jpg")
    Path("a.txt").write_bytes(b"M\xfcll")
    plan([source], "txt", mode=Mode.append).write(source, CAPTION)
    assert Path("a.txt").read_bytes() == b"M\xfcll A dog runs.\n"


def test_a_caption_is_one_clean_line(pictures: Make) -> None:
    [source] = pictures("a.jpg")
    path = plan([source], "txt").write(
        source, say(" Ein Müll\x1b[31m\u202e\n\neimer\u2028図 \ud800\n")
    )
    assert path and path.read_bytes().decode() == "Ein Müll [31m eimer 図 \ufffd\n"


@pytest.mark.parametrize("text", ["", " \n\u200b"])
def test_an_empty_caption_writes_nothing(pictures: Make, text: str) -> None:
    [source] = pictures("a.jpg")
    with pytest.raises(InputError, match="a.txt: not written, the caption is empty"):
        plan([source], "txt").write(source, say(text))
    assert os.listdir() == ["a.jpg"]


def test_a_folder_that_cannot_be_written_is_told_before_work(
    pictures: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = pictures("ro/a.jpg", "rw/b.jpg")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "ro")  # root may all
    with pytest.raises(UsageError, match="--sidecar txt: ro can't be written; see --sidecar-dir"):
        plan(sources, "txt")
    with pytest.raises(UsageError, match="ro can't be written"):
        plan(sources, "txt", folder=Path("ro/new/deeper"))
    assert plan(sources, "txt", folder=Path("rw/new/deeper"))


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, ArgusError), (errno.ENAMETOOLONG, InputError)]
)
def test_a_full_disk_ends_the_run_and_a_bad_name_its_record(
    pictures: Make, monkeypatch: pytest.MonkeyPatch, number: int, kind: type
) -> None:
    [source] = pictures("a.jpg")

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(kind, match=f"--sidecar a.txt: {os.strerror(number)}"):
        plan([source], "txt").write(source, CAPTION)
    assert os.listdir() == ["a.jpg"]


def test_a_name_without_utf8_has_a_sidecar(pictures: Make) -> None:
    [source] = pictures(os.fsdecode(b"\xff.jpg"))
    assert plan([source], "txt").write(source, CAPTION)
    assert Path(os.fsdecode(b"\xff.txt")).exists()


def test_a_sidecar_that_cannot_be_read_fails_its_record(pictures: Make) -> None:
    [source] = pictures("a.jpg")
    Path("a.txt").mkdir()
    sidecars = plan([source], "txt")
    assert sidecars.todo(source)
    with pytest.raises(InputError, match="a.txt: left as it is, no file"):
        sidecars.write(source, CAPTION)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("target", ["", "precious"])
@pytest.mark.parametrize("extension", ["txt", "xmp"])
def test_nothing_is_written_through_a_link(
    pictures: Make, mode: Mode, target: str, extension: str
) -> None:
    [source] = pictures("a.jpg")
    Path("ours").write_text(target)
    Path(f"a.{extension}").symlink_to("ours")
    sidecars = plan([source], extension, mode=mode)
    with pytest.raises(InputError, match=f"a.{extension}: left as it is, a link"):
        sidecars.write(source, CAPTION)
    assert Path("ours").read_text() == target


@pytest.mark.parametrize("mode", list(Mode))
def test_a_sidecar_that_never_ends_is_not_read(pictures: Make, mode: Mode) -> None:
    [pipe, huge] = pictures("pipe.jpg", "huge.jpg")
    os.mkfifo("pipe.txt")
    with open("huge.txt", "wb") as file:
        file.truncate(2**40)
    sidecars = plan([pipe, huge], "txt", mode=mode)
    for source in (pipe, huge):
        assert sidecars.todo(source)
        with pytest.raises(InputError, match="left as it is, no file of at most 64 MiB"):
            sidecars.write(source, CAPTION)
