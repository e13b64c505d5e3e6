"""The class for a user's own Dataset.map_batches: same records, no row raises, it pickles."""

import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("ray", reason="Ray isn't installed; pip install 'argus-vlm[ray]'")

import argus_cli
from argus_cli.captioner import Request
from argus_cli.cluster import CaptionActor, actors
from argus_cli.cluster.actors import PartActor
from argus_cli.cluster.parts import Parts, Record
from argus_cli.cluster.places import Item
from argus_cli.errors import ModelDamaged, ModelMissing, UsageError
from argus_cli.output.lines import to_record
from argus_cli.schema import Caption, Sampling

pytest_plugins = ["machines"]

REQUEST = Request(sampling=Sampling(5))


@pytest.fixture
def actor(tiny_folder: Path) -> CaptionActor:
    return CaptionActor(str(tiny_folder), REQUEST, dtype="float32", threads=1, timeout=None)


def test_records_are_those_of_the_library(
    actor: CaptionActor, pictures: Path, tiny_folder: Path
) -> None:
    path = str(pictures / "1.png")
    (row,) = actor({"path": np.array([path]), "id": np.array([7])}).to_pylist()
    expected = to_record(argus_cli.load(tiny_folder, dtype="float32").caption(path, REQUEST))
    volatile = {"seconds", "bytes", "mtime_ns", "confidence"}
    assert {k: row[k] for k in expected if k not in volatile} == {
        k: v for k, v in expected.items() if k not in volatile
    }
    assert row["confidence"] == pytest.approx(expected["confidence"], abs=1e-3)
    assert row["bytes"] == (pictures / "1.png").stat().st_size
    assert row["id"] == 7 and row["error"] is None


def test_bytes_say_the_same_as_their_path(actor: CaptionActor, pictures: Path) -> None:
    path = pictures / "1.png"
    by_path, by_bytes, bare = (
        actor(pa.Table.from_pylist([row])).to_pylist()[0]
        for row in (
            {"path": str(path)},
            {"path": "its name", "bytes": path.read_bytes()},
            {"bytes": path.read_bytes()},
        )
    )
    assert by_path["caption"] == by_bytes["caption"] == bare["caption"] != ""
    assert (by_bytes["path"], bare["path"]) == ("its name", "<bytes>")


def test_no_row_raises(
    actor: CaptionActor, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = actor.captioner.features
    poison = pictures / "5.png"
    pixels: list[object] = []

    def sick(tiles: np.ndarray) -> object:
        pixels.append(tiles)
        if len(pixels) in (1, 4):  # in a batch of all, then when the second good one is alone
            raise RuntimeError("a defect")
        return features(tiles)

    monkeypatch.setattr(actor.captioner, "features", sick)
    paths = [str(pictures / "torn.jpg"), str(pictures / "nope.png"), None, "gopher://host/x.png"]
    good = [str(pictures / f"{n}.png") for n in range(2)] + [str(poison)]
    rows = actor(pa.table({"path": [*paths, *good]})).to_pylist()
    assert [row["error"]["type"] for row in rows[:4]] == ["ImageError"] * 4
    assert [bool(row["caption"]) for row in rows].count(True) == 2
    assert any(row["error"] and "a defect" in row["error"]["message"] for row in rows)


def test_it_pickles_before_and_after_it_has_loaded(actor: CaptionActor, pictures: Path) -> None:
    batch = pa.table({"path": [str(pictures / "2.png")]})
    before = pickle.dumps(actor)
    caption = actor(batch)["caption"].to_pylist()
    after = pickle.dumps(actor)
    assert len(after) == len(before) < 5000
    assert pickle.loads(after)(batch)["caption"].to_pylist() == caption


def test_the_model_is_loaded_once(
    actor: CaptionActor, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = pa.table({"path": [str(pictures / "2.png")]})
    actor(batch)
    monkeypatch.setattr("argus_cli.cluster.actors.load", None)  # must not be reached
    actor(batch)


def test_threads_are_those_that_ray_gave(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # what Ray sets to an actor's num_cpus
    assert CaptionActor(str(tiny_folder)).threads == 3
    assert CaptionActor(str(tiny_folder), threads=2).threads == 2


def test_a_model_that_another_process_is_fetching_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half_there(model: str) -> None:
        raise ModelDamaged(f"{model}: missing")

    monkeypatch.setattr(actors, "find", half_there)
    monkeypatch.setattr(actors, "pull", lambda manifest, progress: (manifest.name, progress))
    assert actors.model_here("smolvlm-256m") == ("smolvlm-256m", False)
    with pytest.raises(ModelDamaged, match="./mine: missing"):
        actors.model_here("./mine")


def test_offline_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors, "pull", None)
    some = pickle.loads(pickle.dumps(CaptionActor("smolvlm-2.2b", offline=True)))
    with pytest.raises(ModelMissing):
        some.records([])


def test_a_device_that_is_not_there_is_no_rows_fault(tiny_folder: Path, pictures: Path) -> None:
    some = CaptionActor(str(tiny_folder), device="mps")
    with pytest.raises(UsageError, match="mps"):
        some.records([Item("1.png", str(pictures / "1.png"))])


class Broken(CaptionActor):
    def records(self, items: object) -> list[Record]:
        raise RuntimeError("a defect")


def test_what_is_not_foreseen_is_told_in_the_last_round(tmp_path: Path) -> None:
    parts = Parts(str(tmp_path), "parquet", Caption)
    batch = pa.table({"name": ["caf\\xe9.png"], "at": [b"/caf\xe9.png"]})
    with pytest.raises(RuntimeError):
        PartActor(Broken(), parts, False)(batch)
    (told,) = PartActor(Broken(), parts, True)(batch).to_pylist()
    assert told["path"] == "caf\\xe9.png"
    assert told["error"] == {"type": "RuntimeError", "message": "caf\\xe9.png: a defect"}
    assert list(parts.index()) == ["caf\\xe9.png"]


def test_a_name_that_is_no_utf_8_is_told_and_written(actor: CaptionActor, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.png")).write_bytes(b"no picture")
    parts = Parts(str(tmp_path / "out"), "parquet", Caption)
    batch = pa.table({"name": ["caf\\xe9.png"], "at": [bytes(tmp_path) + b"/caf\xe9.png"]})
    (told,) = PartActor(actor, parts, False)(batch).to_pylist()
    assert told["error"]["type"] == "ImageError"
    assert told["error"]["message"].startswith("caf\\xe9.png: ")
    assert list(parts.index()) == ["caf\\xe9.png"]
