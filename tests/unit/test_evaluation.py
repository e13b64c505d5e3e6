"""How glimpse's figures are made: scripts/evaluate.py, calibrate.py and plot_training.py."""

import json
import math
import sys
from pathlib import Path

import calibrate
import evaluate
import numpy as np
import plot_training
import pytest
import train_glimpse as training
from conftest import TINY
from glimpse_data import Photo
from safetensors.torch import save_file

DOG = Photo(Path("dog.jpg"), ("A brown dog runs in the snow.", "Two dogs play outside."))


@pytest.mark.parametrize(
    ("caption", "split", "right"),
    [
        ("A dog is running.", "test", True),  # one of two words
        ("A dog runs in the snow.", "test", True),
        ("A cat sleeps on a sofa.", "test", False),
        ("A cat looks at a dog.", "test", False),  # one of three
        ("A cat looks at a dog.", "labelled", True),
        ("A cat.", "labelled", False),
        ("A puppy.", "labelled", True),
        ("A photo of the view.", "labelled", False),  # says nothing
    ],
)
def test_what_is_right(caption: str, split: str, right: bool) -> None:
    assert evaluate.is_right(DOG, caption, split) is right


def test_the_logistic_is_found_again() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 0, 20_000)
    right = (rng.random(len(x)) < 1 / (1 + np.exp(-(2.5 * x + 1.5)))).astype(float)
    slope, offset = calibrate.fit(x, right)
    # three standard errors of 20,000 draws, about 0.035 and 0.045 each
    assert slope == pytest.approx(2.5, abs=0.11) and offset == pytest.approx(1.5, abs=0.14)


def test_reliability_has_bins_of_equal_numbers() -> None:
    p = np.array([0.9, 0.1, 0.2, 0.8])
    right = np.array([1.0, 0.0, 1.0, 1.0])
    curve = calibrate.reliability(p, right, bins=2)
    assert curve == [(pytest.approx(0.15), 0.5, 2), (pytest.approx(0.85), 1.0, 2)]


def test_always_saying_the_share_costs_its_entropy() -> None:
    right = np.array([1.0, 0.0])
    assert calibrate.log_loss(np.array([0.5, 0.5]), right) == pytest.approx(math.log(2))


def exported(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    (folder / "generation_config.json").write_text("{}")
    save_file({"model.a": training.torch.zeros(3, 5)}, folder / "model.safetensors")
    return folder


def test_calibration_is_written_with_the_manifest_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = exported(tmp_path / "small")
    rng = np.random.default_rng(1)
    confidence = rng.uniform(-2, 0, 400)
    lines = [
        json.dumps({"confidence": c, "right": bool(rng.random() < math.exp(c))}) for c in confidence
    ]
    (tmp_path / "dev.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(
        sys, "argv", ["calibrate.py", str(tmp_path / "dev.jsonl"), "--model", str(model)]
    )
    calibrate.main()
    told = json.loads(capsys.readouterr().out)
    assert told["slope"] > 0 and told["expected_calibration_error"] < 0.2
    settings = json.loads((model / "generation_config.json").read_text())
    assert settings["calibration"]["slope"] == round(told["slope"], 4)
    manifest = (model / "manifest.toml").read_text()
    assert "parameters = 15\n" in manifest and 'path = "generation_config.json"' in manifest
    assert training.sha256_of(model / "generation_config.json") in manifest
    assert (model / "reliability.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match="is calibrated; export anew"):
        calibrate.main()


LOG = """\
03:15:54 step 25 loss -0.1038 rate 2.50e-05 reward 0.4068 0.2483 0.1890
03:20:00 step 50 loss nan rate 5.00e-05 DEV 2.9 CIDEr 0.51 distinct 0.78
    A dog.
04:15:54 step 50 loss 1.5 rate 5.00e-05 reward 0.5 0.3 0.2
05:15:54 step 50 loss 1.25 rate 5.00e-05 reward 0.6 0.3 0.2
"""


def test_a_step_logged_twice_counts_as_it_was_last(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(LOG)
    assert plot_training.points([tmp_path / "a.log"], r"reward (\S+)") == [(25, 0.4068), (50, 0.6)]
    assert plot_training.points([tmp_path / "a.log"], r"DEV (\S+)") == [(50, 2.9)]
    assert plot_training.losses([tmp_path / "a.log"]) == [(25, -0.1038), (50, 1.25)]
