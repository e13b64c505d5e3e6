"""Runs on a cluster of two machines, both of them this one: nothing twice, nothing lost."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray isn't installed; pip install 'argus-vlm[ray]'")
from conftest import draw
from films import film, steady
from typer.testing import CliRunner

import argus_cli
from argus_cli.batch import caption_each
from argus_cli.captioner import Request
from argus_cli.cli.app import app
from argus_cli.cluster import CaptionActor
from argus_cli.cluster.job import run_on_cluster
from argus_cli.cluster.parts import Parts, Record
from argus_cli.cluster.places import Place, find_items
from argus_cli.errors import ModelMissing
from argus_cli.media.sources import PICTURES, resolve
from argus_cli.schema import Caption, Failure, Sampling, VideoCaption

pytest_plugins = ["machines"]
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # Ray's own, of Ray
]

FEW = Request(sampling=Sampling(5))


def records(parts: Parts) -> list[Record]:
    place = Place.at(parts.folder)
    return [record for name in place.names() for record in parts.read(name) or ()]


def words(pictures: Path | str, out: Path | str, tiny_folder: Path) -> list[str]:
    return ["caption", str(pictures), "--ray", "auto", "-o", str(out), "-m", str(tiny_folder),
            "--max-new-tokens", "5", "--dtype", "float32"]  # fmt: skip


def test_a_folder_becomes_parts_and_the_same_command_goes_on(
    machines: Any, pictures: Path, tmp_path: Path, tiny_folder: Path
) -> None:
    command = words(pictures, tmp_path / "out", tiny_folder)
    first = CliRunner().invoke(app, [*command, "--limit", "5"])
    assert first.exit_code == 0, first.output
    second = CliRunner().invoke(app, command)
    assert second.exit_code == 1  # one picture is torn
    assert "5 of 13 are done already" in second.stderr
    assert "torn.jpg: " in second.stderr and "1 of 8 failed" in second.stderr
    paths = [record["path"] for record in records(Parts(str(tmp_path / "out"), "jsonl", Caption))]
    assert sorted(paths) == sorted(s.name for s in resolve([str(pictures)]))
    third = CliRunner().invoke(app, command)
    assert third.exit_code == 1 and "1 failed before" in third.stderr


class PoisonedActor(CaptionActor):
    """Ends its process at a certain picture, as a fault in native code would."""

    def _each(self, sources: Any) -> Any:
        for source in sources:
            if source.name.endswith("7.png"):
                os._exit(1)
        return super()._each(sources)


def test_a_picture_that_kills_its_process_becomes_a_failure(
    machines: Any, pictures: Path, tmp_path: Path, tiny_folder: Path
) -> None:
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    items = find_items([str(pictures)], (), PICTURES, True)
    parts = Parts(str(tmp_path / "out"), "jsonl", Caption)
    actor = PoisonedActor(str(tiny_folder), FEW, dtype="float32", threads=1, timeout=None)
    results = list(run_on_cluster(actor, items, parts))
    failures = {r.path: r.type for r in results if isinstance(r, Failure)}
    assert failures == {
        str(pictures / "7.png"): "ProcessError",
        str(pictures / "torn.jpg"): "ImageError",
    }
    written = records(parts)
    assert sorted(r["path"] for r in written) == sorted(item.name for item in items)
    assert sum("caption" in r for r in written) == 11


def test_object_storage_is_read_and_written(
    machines: Any, s3: str, pictures: Path, tiny_folder: Path
) -> None:
    bucket = Place.at("s3://shelf")
    for picture in pictures.iterdir():
        bucket.child(f"in/{picture.name}").write_whole(picture.read_bytes())
    command = words("s3://shelf/in", "s3://shelf/out", tiny_folder)
    result = CliRunner().invoke(app, [*command, "-f", "parquet"])
    assert result.exit_code == 1, result.output
    written = records(Parts("s3://shelf/out", "parquet", Caption))
    assert sorted(r["path"] for r in written) == sorted(
        f"s3://shelf/in/{p.name}" for p in pictures.iterdir() if p.suffix != ".txt"
    )
    local = CaptionActor(str(tiny_folder), FEW, dtype="float32", threads=1, timeout=None)
    (one,) = local.records(find_items([str(pictures / "3.png")], (), PICTURES, True))
    assert [r["caption"] for r in written if r["path"].endswith("/3.png")] == [one["caption"]]


def test_a_machine_that_dies_costs_nothing(machines: Any, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(300):
        draw(48, 32, seed=number).save(folder / f"{number}.png")
    second = machines.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    items = find_items([str(folder)], (), PICTURES, True)
    parts = Parts(str(tmp_path / "out"), "jsonl", Caption)
    actor = CaptionActor("glimpse", dtype="float32", threads=1, timeout=None)
    done = 0
    for result in run_on_cluster(actor, items, parts):
        assert not isinstance(result, Failure)
        done += 1
        if done == 100:
            machines.remove_node(second, allow_graceful=False)
    assert done == 300
    captioner = argus_cli.load("glimpse", dtype="float32")
    local = caption_each(captioner, resolve([str(folder)]), Request(), timeout=None)
    expected = sorted((r.path, r.caption) for r in local if isinstance(r, Caption))
    assert sorted((r["path"], r["caption"]) for r in records(parts)) == expected


def test_a_model_that_cannot_be_had_ends_the_run(
    machines: Any, pictures: Path, tmp_path: Path
) -> None:
    items = find_items([str(pictures)], (), PICTURES, True)
    parts = Parts(str(tmp_path / "out"), "jsonl", Caption)
    with pytest.raises(ModelMissing, match="nothing"):
        list(run_on_cluster(CaptionActor("./nothing", threads=1), items, parts))
    assert parts.index() == {}


def test_the_door_of_a_dataset(machines: Any, pictures: Path, tiny_folder: Path) -> None:
    import ray

    dataset = ray.data.read_binary_files(str(pictures), include_paths=True)
    rows = dataset.map_batches(
        CaptionActor, fn_constructor_args=(str(tiny_folder), FEW), concurrency=1, num_cpus=1
    ).take_all()
    assert len(rows) == 14
    assert sum(bool(row["caption"]) for row in rows) == 12


def test_films_become_parts(machines: Any, tmp_path: Path, tiny_folder: Path) -> None:
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(film(steady(30)))
    (tmp_path / "none.mp4").write_text("no film")
    command = ["video", str(tmp_path), "--ray", "auto", "-o", str(tmp_path / "out"),
               "-m", str(tiny_folder), "--max-new-tokens", "5", "-f", "parquet"]  # fmt: skip
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1, result.output
    made = Parts(str(tmp_path / "out"), "parquet", VideoCaption)
    good, bad = sorted(records(made), key=lambda r: str(r["path"]))
    assert good["path"] == str(clip) and good["segments"][0]["end"] == pytest.approx(1.2)
    assert bad["error"]["type"] == "VideoError"
