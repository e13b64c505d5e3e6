"""From measurements to document, table, comparison and plot, with a clock that counts looks."""

import json
import sys
from itertools import count
from pathlib import Path

import pytest
import torch
from PIL import Image

from argus_cli.errors import UsageError
from argus_cli.media.images import ImageSource
from argus_cli.profiling.ceilings import Ceilings
from argus_cli.profiling.compare import compare, comparison_table, read_profile
from argus_cli.profiling.picture import choose_picture
from argus_cli.profiling.pipeline import Profile, profile
from argus_cli.profiling.plot import check_plot, plot
from argus_cli.profiling.report import Document, aligned, circumstances, document, table
from argus_cli.profiling.subject import Subject, open_subject

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def subject(tiny_folder: Path) -> Subject:
    return open_subject(str(tiny_folder))


def measured(
    subject: Subject, image: ImageSource | None = None, tiles: int | None = None, runs: int = 1
) -> Profile:
    """By a clock that goes on by a millisecond each time it is looked at."""
    clock = (tick / 1000 for tick in count()).__next__
    model = subject.model(torch.float32, CPU, random=False)
    picture = choose_picture(image, tiles, subject.preprocess)
    return profile(subject, model, picture, Ceilings(1e9, 1e8), clock, runs=runs)


@pytest.fixture(scope="module")
def doc(subject: Subject) -> Document:
    done = measured(subject, tiles=3, runs=2)
    return document(done, circumstances(subject, torch.float32, CPU), random=False)


def test_document_holds_what_was_run(doc: Document, subject: Subject) -> None:
    assert {key: doc[key] for key in ("schema", "model", "dtype", "device", "weights")} == {
        "schema": 1, "model": "tiny", "dtype": "float32", "device": "cpu", "weights": "real",
    }  # fmt: skip
    assert (doc["tiles"], doc["grid"], doc["runs"]) == (3, [1, 2], 2)
    assert doc["versions"].keys() == {"argus", "torch", "python"} and doc["threads"] >= 1
    assert json.loads(json.dumps(doc)) == doc


def test_stages_come_in_the_order_of_the_work(doc: Document) -> None:
    assert [row["stage"] for row in doc["stages"] if row["stage"] != "activation"] == [
        "decode", "resize + tiling", "normalise", "patch embedding", "LN1", "qkv", "attention",
        "out", "residual", "LN2", "fc1", "fc2", "post-LN", "pixel shuffle", "projection",
        "prompt assembly", "prefill: attention", "prefill: MLP", "prefill: head",
        "decoded token", "detokenise",
    ]  # fmt: skip
    assert sum(row["share"] for row in doc["stages"]) == pytest.approx(1)
    assert doc["slowest"] == max(doc["stages"], key=lambda row: row["ms"])["stage"]


def test_layers_sum_to_their_stage(doc: Document) -> None:
    for stage in ("qkv", "fc2", "residual"):
        (whole,) = (row for row in doc["stages"] if row["stage"] == stage)
        parts = [row for row in doc["layers"] if row["stage"] == stage]
        assert [row["layer"] for row in parts] == [0, 1]
        for key in ("ms", "gflop"):
            assert sum(row[key] for row in parts) == pytest.approx(whole[key])


def test_stages_and_the_rest_make_the_traced_whole(doc: Document) -> None:
    whole = doc["wholes"]["vision"]
    assert whole["stages_ms"] == pytest.approx(
        sum(row["ms"] for row in doc["stages"] if row["part"] == "vision")
    )
    assert whole["stages_ms"] == pytest.approx(
        whole["traced_ms"] * (1 - whole["not_accounted_for"])
    )
    assert whole["ms"] == pytest.approx(1)  # without hooks nobody looks at the clock in between


def test_rates_are_work_over_time(doc: Document) -> None:
    (row,) = (row for row in doc["stages"] if row["stage"] == "fc1")
    rate = row.get("gflop_per_s") or row["gb_per_s"]
    work = row["gflop"] if "gflop_per_s" in row else row["gb"]
    assert rate == pytest.approx(1e3 * work / row["ms"])


def test_table_is_aligned_and_ends_with_the_slowest(doc: Document) -> None:
    lines = table(doc, layers=True)
    assert lines[-1].startswith(f"slowest: {doc['slowest']}, ")
    start = lines.index("") + 1
    rows = lines[start : start + len(doc["stages"]) + 1]
    assert len({len(line) for line in rows}) == 1
    assert any(line.startswith(" 1 fc2") for line in lines)
    assert lines[1] == (
        f"real weights, 3 tiles, {doc['prompt_tokens']} prompt tokens, median of 2 runs"
    )


def test_columns_are_as_wide_as_their_widest() -> None:
    assert aligned([["a", "b"], ["long", "10"]]) == ["a      b", "long  10"]


def test_a_picture_of_ones_own_is_tiled_as_for_captioning(subject: Subject, photo: Path) -> None:
    assert measured(subject, photo).grid.tiles == 13
    assert measured(subject, photo, tiles=7).grid.tiles == 7


def test_equal_tiles_cost_one(subject: Subject) -> None:
    plain = measured(subject, Image.new("RGB", (64, 64)))
    assert (plain.grid.tiles, plain.distinct_tiles) == (17, 1)
    drawn = measured(subject, tiles=2)  # its one cell and the whole look the same
    assert (drawn.grid.tiles, drawn.distinct_tiles) == (2, 2)
    one, two = ({s.name: s.cost.flops for s in p.stages} for p in (plain, drawn))
    assert two["fc1"] == 2 * one["fc1"]


def slower(doc: Document, factor: float, stage: str = "qkv") -> Document:
    """The same with one stage of another speed, and no spread anywhere."""
    new = json.loads(json.dumps(doc))
    for row in (*new["stages"], *new["wholes"].values()):
        row["spread_ms"] = 0.0
        row["ms"] *= factor if row.get("stage") == stage else 1
        row["fastest_ms"] = row["ms"]
    return new


@pytest.mark.parametrize(("factor", "found"), [(1.3, ["qkv"]), (1.1, []), (0.5, [])])
def test_slower_stages_are_found(doc: Document, factor: float, found: list[str]) -> None:
    compared = compare(slower(doc, 1), slower(doc, factor), fail_over=20)
    assert compared["slower"] == found
    (row,) = (row for row in compared["stages"] if row["stage"] == "qkv")
    assert row["ratio"] == pytest.approx(factor)
    lines = comparison_table(compared)
    assert any(line.startswith("qkv") and f" {factor:.2f} " in line for line in lines)


def test_what_is_no_slower_than_the_median_before_is_noise(doc: Document) -> None:
    old, new = slower(doc, 1), slower(doc, 1.5)
    (row,) = (row for row in old["stages"] if row["stage"] == "qkv")
    row["ms"] *= 1.6
    assert compare(old, new, fail_over=20)["slower"] == []


def test_a_stage_too_short_to_tell_fails_nothing(doc: Document) -> None:
    old, new = slower(doc, 1), slower(doc, 1)
    for part, ms in ((old, 1e-6), (new, 9e-6)):
        row = part["stages"][0]
        row["ms"] = row["fastest_ms"] = ms
    assert compare(old, new, fail_over=20)["slower"] == []


def test_without_a_limit_nothing_fails(doc: Document) -> None:
    assert compare(slower(doc, 1), slower(doc, 9), fail_over=None)["slower"] == []


def test_stages_that_only_one_has_are_named(doc: Document) -> None:
    old = slower(doc, 1)
    old["stages"] = [row for row in old["stages"] if row["stage"] != "fc1"]
    assert "only now: fc1" in comparison_table(compare(old, slower(doc, 1), fail_over=1))


def test_another_machine_is_named(doc: Document) -> None:
    found = compare(doc | {"machine": {"processor": "other"}}, doc, None)
    assert "another in that profile: machine" in comparison_table(found)


@pytest.mark.parametrize("key", ["model", "dtype", "device", "threads", "tiles", "prompt_tokens"])
def test_what_measures_something_else_is_refused(doc: Document, key: str) -> None:
    with pytest.raises(UsageError, match=f"made with {key} other"):
        compare(doc | {key: "other"}, doc, None)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": 1}', '{"schema": 2, "stages": [], "wholes": {}}']
)
def test_other_files_are_no_profiles(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UsageError, match=r"a\.json: not a profile"):
        read_profile(tmp_path / "a.json")


def test_a_saved_profile_is_read_back(tmp_path: Path, doc: Document) -> None:
    (tmp_path / "a.json").write_text(json.dumps(doc))
    assert read_profile(tmp_path / "a.json") == doc


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plot_is_written(tmp_path: Path, doc: Document, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot.{suffix}"
    plot(doc, path)
    begins = {"png": b"\x89PNG", "svg": b"<?xml"}[suffix]
    assert path.read_bytes().startswith(begins)
    if suffix == "svg":
        assert b"<!-- patch embedding -->" in path.read_bytes()


def test_plot_takes_two_formats(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"plot\.gif: the name must end in \.png or \.svg"):
        check_plot(tmp_path / "plot.gif")


def test_a_missing_matplotlib_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"pip install 'argus-vlm\[plot\]'"):
        check_plot(tmp_path / "plot.png")
