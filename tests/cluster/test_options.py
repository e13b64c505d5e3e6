"""`--ray` on the command line: what is refused before Ray or a model is touched."""

from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray isn't installed; pip install 'argus-vlm[ray]'")
from typer.testing import CliRunner

from argus_cli.cli import cluster
from argus_cli.cli.app import app
from argus_cli.cluster import job, parts
from argus_cli.cluster.job import fair_cpus, room, rows_of_a_part
from argus_cli.errors import UsageError
from argus_cli.output.lines import to_record
from argus_cli.schema import Caption, Failure

pytest_plugins = ["machines"]


def refusal(*words: str) -> str:
    """The one line that a command ends with."""
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, UsageError), result
    assert "\n" not in str(result.exception)
    return str(result.exception)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-o", "out", "--sidecar", "txt"], "--sidecar: not with --ray"),
        (["-o", "out", "--overwrite"], "--overwrite: not with --ray"),
        (["-o", "out", "--fail-fast"], "--fail-fast: not with --ray"),
        (["-o", "out", "-v"], "--verbose: not with --ray"),
        (["-o", "out", "--prefix", "x"], "--prefix: not with --ray"),
        (["-o", "out", "--jsonl-schema", "kohya"], "--jsonl-schema: not with --ray"),
        (["-o", "out", "-f", "csv"], "--format csv: with --ray there are jsonl and parquet"),
        ([], "--ray: needs -o OUT"),
        (["-o", "file"], "--output file: is a file"),
        (["-o", "out", "-"], "-: not with --ray"),
    ],
)
def test_what_makes_no_sense_on_a_cluster_is_refused(
    words: list[str], says: str, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pictures.parent)
    Path("file").touch()
    assert says in refusal("caption", "pictures", "--ray", "local", *words)


def test_films_refuse_likewise(tmp_path: Path) -> None:
    words = ["video", "clip.mp4", "--ray", "local", "-o", str(tmp_path / "out")]
    assert "--frames-dir: not with" in refusal(*words, "--frames-dir", "frames")
    assert "--format srt: with --ray there are" in refusal(*words, "-f", "srt")


@pytest.mark.parametrize("command", ["caption", "video"])
def test_parquet_needs_a_cluster(command: str, photo: Path) -> None:
    assert refusal(command, str(photo), "-f", "parquet") == "--format parquet: needs --ray"


@pytest.mark.parametrize("lacking", ["ray", "pyarrow"])
def test_without_ray_one_line_says_how_to_get_it(
    lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "find_spec", lambda name: None if name == lacking else name)
    monkeypatch.setattr("argus_cli.cli.cluster.find_items", None)  # which needs pyarrow
    words = ["caption", "s3://shelf", "--ray", "local", "-o", str(tmp_path / "out")]
    assert refusal(*words).endswith("pip install 'argus-vlm[ray]'")


def test_a_dry_run_lists_what_would_be_captioned(pictures: Path, tmp_path: Path) -> None:
    words = ["caption", str(pictures), "--ray", "local", "-o", str(tmp_path / "out"), "--dry-run"]
    result = CliRunner().invoke(app, [*words, "--limit", "2"])
    assert result.stdout.splitlines() == [str(pictures / "0.png"), str(pictures / "1.png")]


@pytest.mark.parametrize(
    ("output", "folder", "format"),
    [
        ("out", "out", "jsonl"),
        ("out.parquet", "out.parquet", "parquet"),
        ("s3://shelf/out.PARQUET", "s3://shelf/out.PARQUET", "parquet"),
        ("S3://shelf/out.jsonl", "S3://shelf/out.jsonl", "jsonl"),
    ],
)
def test_the_output_names_place_and_format(
    output: str, folder: str, format: str, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    def stop(folder: str, format: str, kind: type) -> None:
        made.extend([folder, format])
        raise UsageError("enough")

    monkeypatch.setattr(cluster, "Parts", stop)
    refusal("caption", str(photo), "--ray", "local", "-m", "glimpse", "-o", output)
    assert made == [folder, format]


def test_records_that_a_stopped_run_left_doubled_go_with_the_next(
    photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = to_record(Failure(str(photo), "ImageError", "torn"))
    for run in ("20260101T000000", "20260102T000000"):
        some = parts.Parts(str(tmp_path / "out"), "jsonl", Caption, run)
        some.write(some.name([str(photo)]), [failed])
    words = ["caption", str(photo), "--ray", "local", "-m", "glimpse", "-o", str(tmp_path / "out")]
    assert CliRunner().invoke(app, words).exit_code == 1  # and nothing is left to be done
    assert len(list((tmp_path / "out").iterdir())) == 1


@pytest.mark.parametrize(
    ("machines", "cpus"),
    [
        ([(2, 0)], 2),
        ([(8, 0), (8, 0)], 8),
        ([(12, 0)], 6),
        ([(10, 0)], 5),
        ([(64, 0), (2, 0)], 8),
        ([(8, 0), (4, 0)], 4),
        ([(8, 8)], 1),
        ([(64, 8), (8, 8)], 1),
        ([(64, 2)], 8),
        ([(0, 0)], 1),
    ],
)
def test_actors_leave_little_idle(machines: list[tuple[int, int]], cpus: int) -> None:
    assert fair_cpus(machines) == cpus


@pytest.mark.parametrize(
    ("machines", "threads", "actors"),
    [([(8, 0), (3, 0)], 2, 5), ([(8, 8)], 1, 8), ([(64, 2), (4, 1)], 8, 2)],
)
def test_machines_hold_so_many_actors(
    machines: list[tuple[int, int]], threads: int, actors: int
) -> None:
    assert room(machines, threads) == actors


def test_more_threads_than_any_machine_has_are_refused() -> None:
    with pytest.raises(UsageError, match="--threads 64: "):
        room([(8, 0), (32, 0)], 64)


@pytest.mark.parametrize(
    ("items", "actors", "rows"), [(100, 4, 8), (3200, 40, 20), (10**7, 40, 128)]
)
def test_parts_are_small_enough_for_all_actors(items: int, actors: int, rows: int) -> None:
    assert rows_of_a_part(items, actors) == rows
