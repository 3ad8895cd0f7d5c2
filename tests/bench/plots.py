"""Plots of a run's figures, as SVG."""

import os

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402

COLORS = {"additive": "#0b6e8f", "gpt2": "#c4622d", "rotary": "#8a3f8f", "trilinear": "#b03060", "PyTorch": "#9a9a9a"}
pyplot.rcParams.update(
    {
        "svg.fonttype": "none",
        "svg.hashsalt": "bench",
        "figure.figsize": (6, 3.6),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#e0e0e0",
        "legend.frameon": False,
    }
)


def save(path, title, x, y):
    pyplot.gca().set(xlabel=x, ylabel=y)
    pyplot.title(title, loc="left", fontsize="medium")
    pyplot.tight_layout()
    pyplot.savefig(path, metadata={"Date": None})
    pyplot.close()


def curves(figures):
    """Curves by name, each value by an x that is a power of two; values that are None are left out."""
    for name, points in figures.items():
        known = [(int(x), y) for x, y in points.items() if y]
        pyplot.plot(*zip(*known), "o-", label=name, color=COLORS[name])
    pyplot.xscale("log", base=2)
    pyplot.gca().xaxis.set_major_formatter("{x:,.0f}")
    pyplot.legend()


def bars(figures):
    """Contestants by name with the value of each, first on top."""
    colors = [next(color for name, color in reversed(COLORS.items()) if name in label) for label in figures]
    drawn = pyplot.barh(list(figures), list(figures.values()), color=colors)
    pyplot.bar_label(drawn, fmt="{:,.0f}", padding=3)
    pyplot.gca().invert_yaxis()
    pyplot.grid(axis="y", visible=False)
    pyplot.margins(x=0.15)


def draw(results, out):
    def path(name):
        return os.path.join(out, name + ".svg")

    if results.get("lengths"):
        curves(results["lengths"])
        pyplot.ylim(bottom=0)
        save(path("lengths"), "Training speed over the sequence length", "tokens in a sequence", "tokens/s")
    if "serving" in results:
        served = results["serving"]
        curves({name: points for name, points in served["state"].items() if any(points.values())})
        pyplot.yscale("log")
        save(path("state"), "What a session keeps", "context, tokens", "bytes")
        flat = [line for line in served["flat"] if "ns" in line]
        pyplot.plot([f["position"] for f in flat], [f["ns"] / 1e3 for f in flat], "o-", color=COLORS["additive"])
        pyplot.xscale("log")
        pyplot.gca().xaxis.set_major_formatter("{x:,.0f}")
        pyplot.ylim(0, 1.3 * max(f["ns"] / 1e3 for f in flat))
        save(path("position"), "Time of a token over its position", "position", "µs per token")
    for part, title, tokens in (
        ("training", "Training, 2 × 2048 tokens a step", 2 * 2048),
        ("decoding", "Decoding one sequence at context 2048", 1),
    ):
        if part in results:
            bars({name: tokens / f["seconds"] for name, f in results[part]["contestants"].items()})
            save(path(part), title, "tokens/s", "")
