"""Draw what training logged: losses of `captions` on the left, rewards of `critic` on the right.

python scripts/plot_training.py --captions LOG... --critic LOG... -o models/glimpse/training.png
"""

import argparse
import re
from pathlib import Path

import matplotlib.pyplot as plt

Points = list[tuple[int, float]]


def points(paths: list[Path], pattern: str) -> Points:
    """(step, value) of the lines that say so; of a step that was logged twice, the later."""
    found: dict[int, float] = {}
    for path in paths:
        for match in re.finditer(rf"step (\d+) loss \S+ .*?{pattern}", path.read_text()):
            found[int(match[1])] = float(match[2])
    return sorted(found.items())


def losses(paths: list[Path]) -> Points:
    """(step, training loss, the mean of a hundred)."""
    found = re.findall(r"step (\d+) loss (\S+) ", "".join(path.read_text() for path in paths))
    return sorted({int(step): float(loss) for step, loss in found}.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--captions", type=Path, nargs="+", required=True)
    parser.add_argument("--critic", type=Path, nargs="+", required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5))
    left.plot(*zip(*losses(options.captions), strict=True), label="training, smoothed labels")
    left.plot(*zip(*points(options.captions, r"DEV (\S+)"), strict=True), "o-", label="dev")
    left.set(xlabel="batches of `captions`", ylabel="nats a token")
    left.legend()
    right.plot(*zip(*points(options.critic, r"reward (\S+)"), strict=True))
    right.set(xlabel="batches of `critic`", ylabel="CIDEr-D of samples, training photos")
    figure.tight_layout()
    figure.savefig(options.output, dpi=80)


if __name__ == "__main__":
    main()
