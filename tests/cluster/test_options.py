"""`--ray` on the command line: what is refused before Ray or a model is touched."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from argus_cli.cli.app import app
from argus_cli.cluster import job
from argus_cli.errors import UsageError

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


def test_without_ray_one_line_says_how_to_get_it(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "find_spec", lambda name: None)
    words = ["caption", str(pictures), "--ray", "local", "-o", str(tmp_path / "out")]
    assert refusal(*words, "-m", "glimpse").endswith("pip install 'argus-vlm[ray]'")


def test_a_dry_run_lists_what_would_be_captioned(pictures: Path, tmp_path: Path) -> None:
    words = ["caption", str(pictures), "--ray", "local", "-o", str(tmp_path / "out"), "--dry-run"]
    result = CliRunner().invoke(app, [*words, "--limit", "2"])
    assert result.stdout.splitlines() == [str(pictures / "0.png"), str(pictures / "1.png")]
