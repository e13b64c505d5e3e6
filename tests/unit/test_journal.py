"""An output that any run can be stopped on, and another go on with: nothing lost, nothing twice."""

import errno
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_records import DONE

from argus_cli.errors import ArgusError, UsageError
from argus_cli.media.sources import Source
from argus_cli.output.journal import Journal, open_journal
from argus_cli.output.lines import LINES, CsvRows, JsonLines
from argus_cli.schema import Caption, Failure

MAKER = ("tiny", "local", "", "?")
FULL = ["argus", "csv"]  # the formats that say all of their input


def source(name: str, size: int = 1, mtime_ns: int = 2) -> Source:
    return Source(name, Path(name), size, mtime_ns)


def caption(name: str, text: str = "A dog runs.", **changes: object) -> Caption:
    made = replace(DONE, path=name, caption=text, bytes=1, mtime_ns=2, prompt="?")
    return replace(made, **changes)  # type: ignore[arg-type]


def failure(name: str) -> Failure:
    return Failure(name, "ImageError", f"{name}: no picture", 1, 2)


def opened(path: Path, schema: str = "argus", **options: bool) -> Journal:
    journal = open_journal(path, LINES[schema](path), **options)
    assert journal is not None
    return journal


def write(path: Path, *results: Caption | Failure, schema: str = "argus", **options: bool) -> None:
    journal = opened(path, schema, **options)
    for result in results:
        journal.write(result)
    journal.close()


def todo(
    path: Path, *sources: Source, schema: str = "argus", retry_failed: bool = False
) -> tuple[list[str], str]:
    journal = opened(path, schema)
    pending = journal.pending(sources, MAKER, retry_failed=retry_failed)
    journal.close()
    return [each.name for each in pending.todo], pending.told


def captions(path: Path, schema: str = "argus") -> dict[str, int]:
    """How many records each path has, read without a journal."""
    lines = LINES[schema](path)
    count: dict[str, int] = {}
    with path.open("rb") as file:
        for row in lines.rows(file):
            entry = lines.read(row.decode("utf-8", "surrogateescape"))
            if entry is not None:
                count[entry.path] = count.get(entry.path, 0) + 1
    return count


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "metadata.jsonl"


@pytest.mark.parametrize("schema", LINES)
def test_what_is_done_is_not_done_again(out: Path, schema: str) -> None:
    names = [str(out.parent / name) for name in ("a.jpg", "=b\n'c\".jpg", "odd \udcff.jpg")]
    write(out, *map(caption, names[:1]), schema=schema)
    write(out, *map(caption, names[1:]), schema=schema)
    new = str(out.parent / "new.jpg")
    assert todo(out, *map(source, [*names, new]), schema=schema) == (
        [new], f"3 of 4 are done already{'' if schema in FULL else ', by their paths alone'}",
    )  # fmt: skip


@pytest.mark.parametrize("schema", FULL)
@pytest.mark.parametrize(
    ("record", "told"),
    [
        (caption("a", bytes=9), "1 to redo: the file has changed"),
        (caption("a", mtime_ns=9), "1 to redo: the file has changed"),
        (caption("a", bytes=None, mtime_ns=None), "1 to redo: the file has changed"),
        (caption("a", model="big"), "1 to redo: made by another model, style or prompt"),
        (caption("a", revision="old"), "1 to redo: made by another model, style or prompt"),
        (caption("a", prompt="Why?"), "1 to redo: made by another model, style or prompt"),
        (replace(failure("a"), bytes=9), "1 to redo: the file has changed"),
    ],
)
def test_what_no_longer_holds_is_redone_and_told(
    out: Path, schema: str, record: Caption | Failure, told: str
) -> None:
    write(out, record, schema=schema)
    assert todo(out, source("a"), schema=schema) == (["a"], told)


@pytest.mark.parametrize("schema", FULL)
def test_failures_are_tried_again_when_asked(out: Path, schema: str) -> None:
    write(out, failure("a"), schema=schema)
    told = "1 failed before, --retry-failed tries them again"
    assert todo(out, source("a"), schema=schema) == ([], told)
    told = "1 failed before and are tried again"
    assert todo(out, source("a"), schema=schema, retry_failed=True) == (["a"], told)


def test_what_is_no_file_is_always_done(out: Path) -> None:
    write(out, caption("<stdin>", bytes=None, mtime_ns=None))
    stdin = Source("<stdin>", Path("-"))
    assert todo(out, stdin) == (["<stdin>"], "")


@pytest.mark.parametrize("schema", FULL)
def test_a_redone_record_replaces_the_old_one(out: Path, schema: str) -> None:
    write(out, failure("a"), caption("b"), caption("c", "worst"), schema=schema)
    out.chmod(0o640)
    write(out, caption("a", "first"), caption("c", "better"), caption("c", "best"), schema=schema)
    assert captions(out, schema) == {"a": 1, "b": 1, "c": 1}
    text = out.read_text()
    assert "best" in text and "better" not in text and "worst" not in text
    assert out.stat().st_mode & 0o777 == 0o640 and list(out.parent.iterdir()) == [out]


def test_an_old_record_stays_until_its_successor_is_there(out: Path) -> None:
    write(out, caption("a", model="big"))
    before = out.read_bytes()
    assert todo(out, source("a"))[0] == ["a"]
    assert out.read_bytes() == before


def test_the_next_run_clears_up_what_a_killed_one_left(out: Path) -> None:
    journal = opened(out)
    for text in ("old", "new"):
        journal.write(caption("a", text))
    os.close(journal._fd)  # as kill -9 would
    journal._partial.write_text("half a copy")
    assert captions(out) == {"a": 2}
    opened(out).close()
    assert captions(out) == {"a": 1} and "new" in out.read_text()
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("schema", LINES)
def test_cut_anywhere_the_rest_is_done_again(out: Path, schema: str) -> None:
    """Whatever byte the file ends at: only the record in hand is lost, none is there twice."""
    results = [caption(str(out.parent / name), 'Two\nlines, "so".\r\n') for name in "ab"]
    write(out, *results, schema=schema)
    whole = out.read_bytes()
    lines = LINES[schema](out)
    first = len((lines.header + str(lines.line(results[0]))).encode())
    sources = [source(result.path) for result in results]
    for size in range(1, len(whole)):
        out.write_bytes(whole[:size])
        journal = opened(out, schema)
        pending = journal.pending(sources, MAKER).todo
        if size >= first:
            assert results[0].path not in [each.name for each in pending], size
        for result in results:
            if result.path in [each.name for each in pending]:
                journal.write(result)
        journal.close()
        assert out.read_bytes() == whole, size


@pytest.mark.parametrize("schema", FULL)
def test_a_cut_row_is_told(out: Path, schema: str, caplog: pytest.LogCaptureFixture) -> None:
    write(out, caption("a"), caption("b"), schema=schema)
    line = len(out.read_bytes().splitlines())
    out.write_bytes(out.read_bytes()[:-9])
    assert todo(out, source("a"), source("b"), schema=schema)[0] == ["b"]
    assert f"line {line} was cut off" in caplog.text


@pytest.mark.parametrize("schema", FULL)
@pytest.mark.parametrize("junk", [b'{"schema": 1, "path": "c\n', b'"\n', b'a,"b\n', b"\xff\0\n"])
def test_a_broken_line_in_the_middle_is_kept_and_told(
    out: Path, schema: str, junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    write(out, caption("a", "x\ny"), schema=schema)
    begin = out.read_bytes()
    out.write_bytes(begin + junk)
    with out.open("ab") as file:
        file.write(str(LINES[schema](out).line(caption("b", "x\ny"))).encode())
    before = out.read_bytes()
    assert todo(out, source("a"), source("b"), schema=schema)[0] == []
    assert out.read_bytes() == before
    assert f"kept as they are: line {begin.count(bytes([10])) + 1}" in caplog.text


def test_half_a_csv_row_is_no_record() -> None:
    row = str(CsvRows().line(caption("a\nb", 'one\n"two"\n', prompt="p\nq")))
    for half in row.splitlines():
        for cells in range(len(CsvRows.header.split(","))):
            with pytest.raises(ValueError):
                CsvRows().read(half + "," * cells + "\r\n")


def test_clearing_a_mangled_csv_up_changes_no_other_record(out: Path) -> None:
    lines = CsvRows()
    texts = {"before": "old", "same": "dog", "redone": 'old "dog"', "end": "dog"}
    before, same, redone, end = (str(lines.line(caption(*text))) for text in texts.items())
    head, tail = str(lines.line(caption("x", "two\nlines"))).split("\n", 1)
    out.write_bytes(f"{lines.header}{before}{head}\n{same}{redone}{tail}{end}".encode())
    write(out, caption("before"), caption("redone"), schema="csv")
    # Next to each other head, same and tail would be one row.
    assert todo(out, *map(source, texts), schema="csv") == ([], "4 of 4 are done already")
    assert before not in (text := out.read_text()) and redone.splitlines()[0] in text


def test_a_last_line_of_the_users_is_no_torn_one(out: Path) -> None:
    write(out, caption("a"))
    with out.open("a") as file:
        file.write('{"note": "mine"}')
    write(out, caption("b"))
    assert '{"note": "mine"}\n{"schema"' in out.read_text()


def test_concatenated_csv_is_read_on(out: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(out, caption("a"), schema="csv")
    out.write_bytes(out.read_bytes() * 2)
    assert todo(out, source("a"), schema="csv") == ([], "1 of 1 are done already")
    assert captions(out, "csv") == {"a": 1} and not caplog.records


@pytest.mark.parametrize("schema", LINES)
@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xd8\xff\xe0\0\x10JFIF\0", b"a note\n", b"path,caption\na,b\n", b"{}\n", b"[1]",
        b'{"path": "a", "caption": "b"}\n', b'{"schema": "x"}\n', b'{"file_name": 1}\n',
    ],
)  # fmt: skip
def test_a_file_that_is_not_ours_is_left_alone(out: Path, schema: str, content: bytes) -> None:
    out.write_bytes(content)
    with pytest.raises(UsageError, match="--overwrite replaces it"):
        opened(out, schema)
    assert out.read_bytes() == content
    opened(out, schema, overwrite=True).close()  # not before there is a record
    assert out.read_bytes() == content
    name = str(out.parent / "a")
    write(out, caption(name), schema=schema, overwrite=True)
    assert list(captions(out, schema).values()) == [1]


def test_overwrite_forgets_what_was_done(out: Path) -> None:
    write(out, caption("a"), caption("b"))
    journal = opened(out, overwrite=True)
    assert len(journal.pending([source("a"), source("b")], MAKER).todo) == 2
    journal.write(caption("b", "new"))
    journal.write(failure("a"))
    journal.close()
    assert captions(out) == {"a": 1, "b": 1} and "runs" not in out.read_text()


def test_a_second_run_on_one_output_is_refused(out: Path) -> None:
    journal = opened(out, overwrite=True)
    for _ in range(2):  # before and after the file was replaced
        with pytest.raises(UsageError, match="another argus is writing to it"):
            opened(out)
        journal.write(caption("a"))
    journal.close()
    opened(out).close()


def test_a_killed_run_leaves_no_lock(out: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from argus_cli.output.journal import open_journal\n"
        "from argus_cli.output.lines import JsonLines\n"
        "journal = open_journal(Path(sys.argv[1]), JsonLines())\n"
        "print('open', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, out], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None and run.stdout.readline() == b"open\n"
        with pytest.raises(UsageError, match="another argus"):
            opened(out)
        run.kill()
    opened(out).close()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_full_disk_leaves_whole_records(out: Path, overwrite: bool) -> None:
    write(out, caption("a"))
    journal = opened(out, overwrite=overwrite)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, hard))
    try:
        with pytest.raises(ArgusError, match="File too large; the .* records before are safe"):
            for number in range(10):
                journal.write(caption(f"new {number}"))
        journal.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert out.read_bytes().endswith(b"}\n") and len(captions(out)) > 1
    write(out, *(caption(f"new {number}") for number in range(10)))
    assert len(captions(out)) == 10 + (not overwrite)


def test_a_disk_too_full_to_clear_up_loses_nothing(
    out: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = opened(out)
    for text in ("old", "new"):
        journal.write(caption("a", text))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    journal.close()
    assert captions(out) == {"a": 2} and list(out.parent.iterdir()) == [out]
    assert "No space left" in caplog.text


def test_short_writes_are_completed(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: really(fd, data[:7]))
    write(out, caption("a"), caption("b"))
    assert captions(out) == {"a": 1, "b": 1}


def test_links_stay_links(out: Path) -> None:
    link = out.parent / "link.jsonl"
    link.symlink_to(out)
    write(link, caption("a", "old"), caption("a"))
    assert link.is_symlink() and captions(out) == {"a": 1}


def test_pipes_and_devices_have_no_journal(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/stdout"), Path("/dev/null")):
        assert open_journal(path, JsonLines()) is None


def test_what_cannot_be_written_is_told_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="--output"):
            open_journal(path, CsvRows())


def test_films_of_the_same_file_are_not_touched(
    out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    film = '{"schema": 1, "path": "a", "segments": []}\n'
    out.write_text(film)
    assert todo(out, source("a"))[0] == ["a"]
    write(out, caption("a"))
    assert out.read_text().startswith(film) and not caplog.records


@pytest.mark.parametrize("replaced", [False, True])
def test_an_output_that_is_taken_away_is_told(out: Path, replaced: bool) -> None:
    journal = opened(out)
    journal.write(caption("a.jpg"))
    out.unlink()
    if replaced:
        out.touch()
    with pytest.raises(ArgusError, match="removed or replaced during the run"):
        journal.close()
