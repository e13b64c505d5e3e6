"""Make glimpse's confidence honest: fit how often it is right to its mean log-probability.

  python scripts/calibrate.py runs/dev.jsonl runs/labelled.jsonl

The files are evaluate.py's, of a model without calibration. Writes slope and offset of the logistic
(Platt 1999) into generation_config.json, the manifest anew, and the reliability curve as a picture:
fitted on one half of the captions, drawn for the other.
"""

import argparse
import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from train_glimpse import write_manifest

Curve = list[tuple[float, float, int]]


def fit(log_probability: NDArray[np.float64], right: NDArray[np.float64]) -> tuple[float, float]:
    """Slope and offset of the logistic with the greatest likelihood, by Newton's method."""
    x = np.stack([log_probability, np.ones_like(log_probability)], 1)
    weights = np.zeros(2)
    for _ in range(50):
        p = 1 / (1 + np.exp(-x @ weights))
        step = np.linalg.solve((x * (p * (1 - p))[:, None]).T @ x, x.T @ (right - p))
        weights += step
        if np.abs(step).max() < 1e-9:
            break
    return float(weights[0]), float(weights[1])


def reliability(p: NDArray[np.float64], right: NDArray[np.float64], bins: int = 8) -> Curve:
    """Mean said, share right and number of the captions, in bins of equal numbers."""
    order = np.array_split(np.argsort(p), bins)
    return [(float(p[some].mean()), float(right[some].mean()), len(some)) for some in order]


def draw(curve: Curve, path: Path) -> None:
    """What was said against what was right."""
    figure, axes = plt.subplots(figsize=(4.5, 4))
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    axes.plot([said for said, _, _ in curve], [right for _, right, _ in curve], "o-")
    axes.set(xlabel="exp(confidence)", ylabel="share of captions that are right",
             xlim=(0, 1), ylim=(0, 1), title="glimpse: reliability of its confidence")  # fmt: skip
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("captions", type=Path, nargs="+")
    parser.add_argument("--model", type=Path, default=Path("models/glimpse"))
    options = parser.parse_args()
    config = options.model / "generation_config.json"
    settings = json.loads(config.read_text())
    if "calibration" in settings:
        raise SystemExit(f"{config}: is calibrated; export anew, evaluate, then calibrate")
    lines = [line for path in options.captions for line in path.read_text().splitlines()]
    entries = [json.loads(line) for line in lines]
    x = np.array([entry["confidence"] for entry in entries])
    right = np.array([float(entry["right"]) for entry in entries])
    half = np.random.default_rng(0).permutation(len(x)) % 2 == 0
    slope, offset = fit(x[half], right[half])
    p = 1 / (1 + np.exp(-(slope * x[~half] + offset)))
    curve = reliability(p, right[~half])
    error = sum(abs(said - told) * number for said, told, number in curve) / len(p)
    draw(curve, options.model / "reliability.png")
    settings["calibration"] = {"slope": round(slope, 4), "offset": round(offset, 4)}
    config.write_text(json.dumps(settings, indent=2) + "\n")
    write_manifest(options.model)
    print(json.dumps({"slope": slope, "offset": offset, "expected_calibration_error": error,
                      "right": float(right.mean()), "log_loss": log_loss(p, right[~half]),
                      "curve": curve}))  # fmt: skip


def log_loss(p: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Nats a caption; what always saying the share of right ones costs is the yardstick."""
    return -float(np.mean([math.log(q if r else 1 - q) for q, r in zip(p, right, strict=True)]))


if __name__ == "__main__":
    main()
