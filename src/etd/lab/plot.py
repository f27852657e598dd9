"""Pictures of a run's metrics: learning curves of several runs, and the diagnostics of one."""

from __future__ import annotations

from collections import Counter
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from etd.core.errors import UserError
from etd.envs.minigrid.speed import Speed
from etd.lab.fields import bonus_name
from etd.lab.store import Run

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

COLOURS = {
    "etd": "#d55e00",
    "none": "#777777",
    "noveld": "#0072b2",
    "deir": "#000000",
    "count": "#009e73",
    "e3b": "#e69f00",
    "ngu": "#cc79a7",
    "rnd": "#56b4e9",
    "ec": "#5d3a9b",
    "agac": "#8c510a",
    "ride": "#7a9a01",
    "icm": "#b0a000",
    "inverse": "#0072b2",
    "discriminator": "#000000",
}
"""Bonuses keep their colour in every picture. The last two stand in for the kin they are never drawn beside."""
PALETTE = ("#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#5d3a9b", "#000000", "#8c510a")
"""For other runs: Okabe and Ito's colours, which people with any colour vision can tell apart, without the yellow."""
LABELS = {
    "return": "return (last 100 episodes)",
    "success": "success rate (last 100 episodes)",
    "length": "episode length (last 100 episodes)",
    "states": "distinct states visited",
    "bonus_mean": "bonus: mean, and std (dashed)",
    "model_loss": "model loss",
    "model_accuracy": "model accuracy",
    "ppo_entropy": "policy entropy (nats)",
    "ppo_value_loss": "value loss",
}
"""What a user asks for when the reward stays at zero, in that order."""
POINTS = 400
"""Curves are thinned to this many points: no panel has more pixels, and a bootstrap costs by the point."""
RESAMPLES = 1000
KEY_TO_LINES = "thin: seeds; bold: their mean (from four seeds on interquartile); band: 95 % bootstrap interval"


class Curves(NamedTuple):
    """One metric of a run."""

    seeds: list[int]
    steps: Floats
    """[I] environment steps after each iteration"""
    values: Floats
    """[S, I]; NaN where a seed has nothing to say yet"""


def by_seed(run: Run, metric: str) -> Curves:
    """The metric's column as one row per seed."""
    table = run.metrics()
    seeds = list(range(run.experiment.seed, run.experiment.seed + run.experiment.seeds))
    if not table:
        return Curves(seeds, np.empty(0), np.empty((len(seeds), 0)))
    if metric not in table:
        raise UserError(f"{run.path} has no metric {metric!r}. It has {', '.join(table)}.")
    # A killed process may leave half a row, without its last column; a resumed run writes it again.
    whole = np.isfinite(table["wall"])
    steps, column = np.unique(table["step"][whole], return_inverse=True)
    values = np.full((len(seeds), len(steps)), np.nan)
    values[table["seed"][whole].astype(int) - seeds[0], column] = table[metric][whole]
    return Curves(seeds, steps, values)


def centre(values: Floats) -> Floats:
    """[..., S, I] to [..., I]: the mean over seeds, from four seeds on the interquartile mean; NaNs are left out."""
    ordered = np.sort(values, axis=-2)  # NaNs go last
    count = np.isfinite(values).sum(-2, keepdims=True)
    cut = np.where(count >= 4, count // 4, 0)
    rank = np.arange(values.shape[-2])[:, None]
    inner = (rank >= cut) & (rank < count - cut)
    total = np.where(inner, ordered, 0.0).sum(-2)
    size = inner.sum(-2)
    return np.where(size > 0, total / np.maximum(size, 1), np.nan)


def band(values: Floats) -> tuple[Floats, Floats]:
    """A 95 % bootstrap interval of ``centre`` over seeds, [S, I] to two [I]; the same on every call."""
    draws = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.full((2, values.shape[1]), np.nan)
    for point in np.flatnonzero(np.isfinite(values).any(0)):  # one at a time, to bound the memory
        resampled = centre(values[draws, point].T)
        low[point], high[point] = np.nanpercentile(resampled, [2.5, 97.5])
    return low, high


def curves(runs: list[Run], path: Path, metric: str = "return") -> Path:
    """Write learning curves, one panel per environment, as the suffix of ``path`` says (.png, .svg, .pdf)."""
    return _save(draw_curves(runs, metric), path)


def panel(run: Run, path: Path) -> Path:
    """Write the run's diagnostics: small panels of what to look at when the reward stays at zero."""
    return _save(draw_panel(run), path)


def draw_curves(runs: list[Run], metric: str = "return") -> Figure:
    """The figure ``curves`` writes."""
    if not runs:
        raise UserError("There is no run to draw. Name at least one run directory.")
    names, environments = labels(runs), list(dict.fromkeys(run.experiment.env.id for run in runs))
    colours = _colours(runs, names)
    figure, axes = _grid(len(environments), (6.4 if len(environments) == 1 else 4.6, 3.8))
    for env, ax in zip(environments, axes, strict=True):
        here = [(run, name) for run, name in zip(runs, names, strict=True) if run.experiment.env.id == env]
        for run, name in here:
            _draw(ax, by_seed(run, metric), colours[name], label=name, faint=len(here) > 4)
        _finish(ax, metric)
        ax.set_title(env, fontsize=11)
        ax.set_ylabel(LABELS.get(metric, metric.replace("_", " ")))
        ax.set_xlabel("environment steps")
    handles = [Line2D([], [], color=colour, linewidth=2.2, label=name) for name, colour in colours.items()]
    title = KEY_TO_LINES if any(run.experiment.seeds > 1 for run in runs) else None
    layout = {"ncols": min(len(handles), 4), "frameon": False, "title": title, "title_fontsize": 8}
    figure.legend(handles=handles, loc="outside lower center", **layout)
    return figure


def draw_panel(run: Run) -> Figure:
    """The figure ``panel`` writes. A metric that the run's bonus does not have gets no panel."""
    table = run.metrics()
    shown = [name for name in LABELS if name in table and not (name == "bonus_mean" and not np.any(table[name]))]
    shown = shown or ["return"]
    figure, axes = _grid(len(shown), (3.6, 2.35))
    colour = COLOURS.get(bonus_name(run.experiment.bonus), PALETTE[0])
    for name, ax in zip(shown, axes, strict=True):
        _draw(ax, by_seed(run, name), colour)
        if name == "bonus_mean":
            std = _thin(by_seed(run, "bonus_std"))
            ax.plot(std.steps, centre(std.values), color=colour, linewidth=1.4, linestyle=(0, (4, 2)))
        _finish(ax, name)
        ax.set_title(LABELS[name], fontsize=9, loc="left")
    figure.suptitle(f"{run.experiment.env.id}, {labels([run])[0]}", fontsize=11)
    return figure


def labels(runs: list[Run]) -> list[str]:
    """A name per run: its bonus where that tells the runs of an environment apart, else its directory."""
    names = [bonus_name(run.experiment.bonus).replace("none", "no bonus") for run in runs]
    for finer in (lambda run: run.path.name, lambda run: str(run.path)):
        taken = Counter((run.experiment.env.id, name) for run, name in zip(runs, names, strict=True))
        names = [
            finer(run) if taken[run.experiment.env.id, name] > 1 else name
            for run, name in zip(runs, names, strict=True)
        ]
    return names


def _colours(runs: list[Run], names: list[str]) -> dict[str, str]:
    """A colour per name. In every environment the first run of a bonus with a colour of its own gets that."""
    colours: dict[str, str] = {}
    used: dict[str, set[str]] = {}
    others = cycle(PALETTE)
    for run, name in zip(runs, names, strict=True):
        here = used.setdefault(run.experiment.env.id, set())
        if name not in colours:
            own = COLOURS.get(bonus_name(run.experiment.bonus))
            colours[name] = own if own and own not in here else next(others)
        here.add(colours[name])
    return colours


def _thin(curve: Curves) -> Curves:
    last = len(curve.steps) - 1
    if last < POINTS:
        return curve
    kept = np.linspace(0, last, POINTS).round().astype(int)
    return Curves(curve.seeds, curve.steps[kept], curve.values[:, kept])


def _draw(ax: Axes, curve: Curves, colour: str, label: str = "", faint: bool = False) -> None:
    """Thin lines of the seeds, a bold one of their centre, a band of its uncertainty; ``faint`` where many meet."""
    curve = _thin(curve)
    # A curve with one point is a dot, not an invisible line.
    dot = "o" if np.isfinite(curve.values).any(0).sum() == 1 else ""
    if len(curve.seeds) > 1:
        ax.fill_between(curve.steps, *band(curve.values), color=colour, alpha=0.07 if faint else 0.16, linewidth=0)
        for seed, values in zip(curve.seeds, curve.values, strict=True):
            width, alpha = (0.5, 0.3) if faint else (0.7, 0.45)
            ax.plot(curve.steps, values, color=colour, linewidth=width, alpha=alpha, label=f"_{label} seed {seed}")
    ax.plot(curve.steps, centre(curve.values), color=colour, linewidth=2.2, marker=dot, label=label)


def _finish(ax: Axes, metric: str) -> None:
    ax.set_xlim(left=0)
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.tick_params(labelsize=8, length=0)
    drawn = np.concatenate([np.asarray(line.get_ydata(), float) for line in ax.lines])
    finite = drawn[np.isfinite(drawn)]
    if not finite.size:
        reason = "no episode finished yet" if metric in ("return", "success", "length") else "nothing to show yet"
        ax.text(0.5, 0.5, reason, transform=ax.transAxes, ha="center", va="center", color="#777777")
        ax.set(xticks=[], yticks=[])
    elif finite.min() >= 0:
        # Rates on their whole scale and the others from zero up, so that small wiggles look small.
        rate = metric in ("return", "success") and finite.max() <= 1
        top = 1.0 if rate else finite.max() or 1.0
        ax.set_ylim(-0.03 * top, 1.06 * top)
        if top >= 10_000:
            ax.yaxis.set_major_formatter(EngFormatter(sep=""))


def _grid(count: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """``count`` panels, at most three in a row. Without pyplot, which keeps figures alive and may want a display."""
    columns = min(count, 3)
    rows = -(-count // columns)
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06)
    figure = Figure(figsize=(columns * size[0], rows * size[1]), layout=layout, dpi=160)
    FigureCanvasAgg(figure)
    axes: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in axes:
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.spines["bottom"].set_color("#999999")
        ax.grid(color="#e6e6e6", linewidth=0.8)
        ax.set_axisbelow(True)
    for ax in axes[count:]:
        ax.remove()
    return figure, axes[:count]


def _save(figure: Figure, path: Path) -> Path:
    known = figure.canvas.get_supported_filetypes()
    if path.suffix.lstrip(".") not in known:
        raise UserError(f"A picture cannot end in {path.suffix!r}. Choose .png, .svg or .pdf.")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def speeds(found: list[Speed], name: str, path: Path) -> Path:
    """Write steps per second against batch size, both logarithmic; single measurements are dots."""
    figure, (ax,) = _grid(1, (6.4, 3.8))
    for what, colour in zip(dict.fromkeys(speed.what for speed in found), (COLOURS["etd"], *PALETTE), strict=False):
        rows = [speed for speed in found if speed.what == what]
        ax.plot([row.batch for row in rows], [row.steps_per_s for row in rows], color=colour, marker="o", label=what)
    ax.set(xscale="log", yscale="log", xlabel="environments at once", ylabel="steps per second", title=name)
    ax.yaxis.set_major_formatter(EngFormatter(sep=""))
    ax.legend(frameon=False)
    return _save(figure, path)
