"""A profile as a picture: the stages' times, and where they stand below the roofline.

matplotlib is only needed here: the extra ``plot``.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from argus_cli.errors import UsageError
from argus_cli.profiling.report import Document, counted, headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"picture": "#b07aa1", "vision": "#4e79a7", "text": "#f28e2b"}
_LINE = 1.1  # a line of text on the logarithmic axis
_SUFFIXES = (".png", ".svg")


def check_plot(path: Path) -> None:
    """Raise UsageError for a plot that couldn't be made, before anything is measured."""
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"--plot {path}: the name must end in {' or '.join(_SUFFIXES)}")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise UsageError("--plot needs matplotlib: pip install 'argus-vlm[plot]'") from None


def plot(doc: Document, path: Path) -> None:
    """Write stage bars and a roofline. Raises UsageError."""
    check_plot(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 6.5), layout="constrained")
    bars, roof = figure.subplots(1, 2, width_ratios=(1, 1.1))
    _bars(bars, doc)
    _roofline(roof, doc)
    figure.suptitle(f"{headline(doc)[0]}; {counted(doc['tiles'], 'tile')}", fontsize=10)
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise UsageError(f"--plot {path}: {error.strerror}") from None


def _bars(axes: "Axes", doc: Document) -> None:
    from matplotlib.patches import Patch

    rows = doc["stages"]
    names, times = [row["stage"] for row in rows], [row["ms"] for row in rows]
    bars = axes.barh(names, times, color=[_COLOURS[row["part"]] for row in rows])
    axes.bar_label(bars, [f"{ms:.1f}" for ms in times], padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(right=max(times) * 1.15)
    axes.set_xlabel("ms")
    axes.set_title("time per stage, median")
    axes.legend(
        handles=[Patch(color=colour, label=part) for part, colour in _COLOURS.items()],
        loc="lower right", frameon=False,
    )  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)


def _roofline(axes: "Axes", doc: Document) -> None:
    peak, bandwidth = doc["ceilings"]["gflop_per_s"], doc["ceilings"]["gb_per_s"]
    rows = [row for row in doc["stages"] if row["gflop"] and "of_ceiling" in row]
    points = [(row["gflop"] / row["gb"], row["gflop"] / row["ms"] * 1e3) for row in rows]
    ridge = peak / bandwidth
    left, right = (f(x for x, _ in [*points, (ridge, 0.0)]) for f in (min, max))
    edges = [left / 3, ridge, right * 12]
    axes.plot(edges, [edges[0] * bandwidth, peak, peak], color="black", linewidth=1)
    for row, (intensity, rate) in zip(rows, points, strict=True):
        axes.plot(intensity, rate, "o", color=_COLOURS[row["part"]])
    for row, at, height in zip(rows, points, _label_heights(points, peak), strict=True):
        line = {"arrowstyle": "-", "color": "grey", "linewidth": 0.5}
        label = (1.6 * right if at[0] > ridge else 1.4 * at[0], height)
        axes.annotate(row["stage"], at, label, arrowprops=line, va="center", fontsize=8)
    axes.text(edges[2], peak * 1.05, f"{peak:.0f} GFLOP/s", ha="right", va="bottom", fontsize=8)
    axes.text(edges[0], edges[0] * bandwidth, f" {bandwidth:.1f} GB/s", va="top", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="GFLOP/s")
    axes.set_title("roofline: the ceilings measured in the same run")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.2, which="both")
    axes.spines[["top", "right"]].set_visible(False)


def _label_heights(points: list[tuple[float, float]], above: float) -> list[float]:
    """Each label at its point's height, or a line of text below the label (or roof) above it."""
    heights = [0.0] * len(points)
    for number in sorted(range(len(points)), key=lambda n: -points[n][1]):
        above = heights[number] = min(points[number][1], above / _LINE)
    return heights
