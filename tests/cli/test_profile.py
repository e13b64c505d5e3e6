"""`argus profile` as a user runs it: a real process, its stdout, stderr and exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from argus_cli.cli.profile import ExperimentName
from argus_cli.profiling.arms import EXPERIMENTS


@pytest.fixture
def profile(tiny_folder: Path):  # type: ignore[no-untyped-def]
    def run(*words: object, model: object = tiny_folder) -> subprocess.CompletedProcess[str]:
        options = ("-m", model, "--dtype", "float32", "--runs", 1)
        command = [sys.executable, "-m", "argus_cli", "profile", *words, *options]
        env = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"}
        return subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, env=env, timeout=100
        )

    return run


def test_table_names_the_slowest_last(profile) -> None:
    done = profile("--tiles", 3, "--layers", "--threads", 1)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0].startswith("tiny, float32 on cpu, 1 thread; ")
    assert lines[-1].startswith("slowest: ")
    assert any(line.startswith(" 1 qkv ") for line in lines)


def test_json_is_one_document(profile, photo: Path) -> None:
    doc = json.loads(profile(photo, "-f", "json", "--random-weights").stdout)
    assert (doc["schema"], doc["tiles"], doc["weights"]) == (1, 13, "random")


def test_save_then_compare_then_fail(profile, tmp_path: Path) -> None:
    saved = tmp_path / "before.json"
    assert profile("--save", saved).returncode == 0
    before = json.loads(saved.read_text())
    for row in (*before["stages"], *before["wholes"].values()):
        row["ms"], row["fastest_ms"], row["spread_ms"] = 1e-6, 1e-6, 0
    saved.write_text(json.dumps(before))
    done = profile("--compare", saved, "--fail-over", 20)
    assert done.returncode == 1 and "ratio" in done.stdout
    assert done.stderr.startswith("argus: slower by more than 20 %: ")


def test_experiment_as_table_and_json(profile) -> None:
    done = profile("--experiment", "attention", "--tiles", 2)
    assert done.returncode == 0 and "sdpa, one tile at a time" in done.stdout
    doc = json.loads(profile("--experiment", "attention", "-f", "json").stdout)
    assert (doc["schema"], doc["experiment"], doc["tiles"]) == (1, "attention", 8)
    assert len(doc["rows"]) == 4


def test_the_command_offers_every_experiment() -> None:
    """It can't import the table for its --help: that would load torch."""
    assert {name.value for name in ExperimentName} == EXPERIMENTS.keys()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere.jpg",), "nowhere.jpg: no such file"),
        (("--fail-over", 5), "--fail-over needs --compare"),
        (("--plot", "a.gif"), "a.gif: the name must end in"),
        (("--compare", "none.json"), "none.json: No such file"),
        (("--experiment", "dtype", "--layers"), "--experiment goes with none of"),
        (("--experiment", "list"), "'kv-cache'"),
    ],
)
def test_impossible_requests(profile, words: tuple[object, ...], message: str) -> None:
    done = profile(*words)
    assert done.returncode == 2 and message in done.stderr and done.stdout == ""


def test_a_damaged_picture_is_one_line(profile, tmp_path: Path) -> None:
    (tmp_path / "page.jpg").write_text("<html>")
    done = profile(tmp_path / "page.jpg")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
