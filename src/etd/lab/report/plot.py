"""Plots of metrics: learning curves of several runs, and diagnostics of one."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from etd.core import files
from etd.core.errors import UserError
from etd.envs import Task
from etd.lab.report.curves import EPISODIC, Curves
from etd.lab.report.curves import band as band
from etd.lab.report.curves import by_seed as by_seed
from etd.lab.report.curves import centre as centre
from etd.lab.runs.store import Run
from etd.training.config import bonus_name, settings

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
"""Each bonus has one colour in all plots. The last two share theirs with bonuses they are never plotted beside."""
PALETTE = ("#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#5d3a9b", "#000000", "#8c510a")
"""For other runs: Okabe and Ito's colours, safe for any colour vision, without the yellow."""
SPARE = ("#8b0000", "#00a5b5", "#9467bd", "#3f5f3f")
"""For when those run out."""
DASHES: tuple[Any, ...] = ("solid", (0, (4, 1.2)), (0, (1, 1)), (0, (4, 1.2, 1, 1.2)), (0, (8, 2)), (0, (2, 2.5)))
"""For when all colours are taken: the same colours with another line."""
LABELS = {
    "return": "return (last 100 episodes)",
    "score": "Crafter's score, % (all episodes)",
    "success": "success rate (last 100 episodes)",
    "length": "episode length (last 100 episodes)",
    "states": "distinct states visited",
    "bonus_mean": "bonus: mean (std dashed)",
    "model_loss": "model loss",
    "model_accuracy": "model accuracy",
    "ppo_entropy": "policy entropy (nats)",
    "ppo_value_loss": "value loss",
}
"""What to look at when the reward stays at zero, in this order."""
MANY = 16
"""A legend with more names than this is set in smaller letters."""
POINTS = 400
"""Curves are thinned to this many points: no panel has more pixels, and the bootstrap has a cost per point."""
KEY_TO_LINES = "thin: seeds; bold: their mean (interquartile from four seeds on); band: 95 % bootstrap interval"


def curves(runs: list[Run], path: Path, metric: str = "return") -> Path:
    """Write learning curves, one panel per environment; the suffix of ``path`` sets the format (.png, .svg, .pdf)."""
    return save(draw_curves(runs, metric), path)


def panel(run: Run, path: Path) -> Path:
    """Write the run's diagnostics: small panels of what to look at when the reward stays at zero."""
    return save(draw_panel(run), path)


def draw_curves(runs: list[Run], metric: str = "return") -> Figure:
    """The figure ``curves`` writes."""
    if not runs:
        raise UserError("There is no run to plot. Name at least one run directory.")
    names, environments = labels(runs), list(dict.fromkeys(map(task, runs)))
    looks = _looks(runs, names)
    figure, axes = grid(len(environments), (6.4 if len(environments) == 1 else 4.6, 3.8))
    for env, ax in zip(environments, axes, strict=True):
        here = [(run, name) for run, name in zip(runs, names, strict=True) if task(run) == env]
        for run, name in here:
            _draw(ax, by_seed(run, metric), *looks[name], label=name, faint=len(here) > 4)
        _finish(ax, metric)
        ax.set_title(_literally(env), fontsize=11)
        ax.set_ylabel(LABELS.get(metric, metric.replace("_", " ")))
        ax.set_xlabel("environment steps")
    handles = [
        Line2D([], [], color=colour, linestyle=line, linewidth=2.2, label=_literally(name))
        for name, (colour, line) in looks.items()
    ]
    title = KEY_TO_LINES if any(run.experiment.seeds > 1 for run in runs) else None
    letters = 8 if len(handles) > MANY else 10  # points
    room = int(110 / letters * figure.get_figwidth())  # letters in a row, a handle counted as eight
    columns = max(1, min(len(handles), 8, room // (8 + max(map(len, looks)))))
    rows = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + max(0, rows - 3) * 0.022 * letters)  # inches a row
    layout = {"ncols": columns, "frameon": False, "title": title, "title_fontsize": 8, "handlelength": 2.6}
    figure.legend(handles=handles, loc="outside lower center", fontsize=letters, **layout)
    return figure


def draw_panel(run: Run) -> Figure:
    """The figure ``panel`` writes. Metrics that the run's bonus does not have get no panel."""
    table = run.metrics()
    shown = [name for name in LABELS if name in table and not (name == "bonus_mean" and not np.any(table[name]))]
    shown = shown or ["return"]
    figure, axes = grid(len(shown), (3.6, 2.45))
    colour = COLOURS.get(bonus_name(run.experiment.bonus), PALETTE[0])
    for name, ax in zip(shown, axes, strict=True):
        _draw(ax, by_seed(run, name, table), colour)
        if name == "bonus_mean":
            std = _thin(by_seed(run, "bonus_std", table))
            ax.plot(std.steps, centre(std.values), color=colour, linewidth=1.4, linestyle=(0, (4, 2)))
        _finish(ax, name)
        ax.set_xlabel("environment steps", fontsize=8)
        ax.set_ylabel(LABELS[name].replace(" (", "\n("), fontsize=8)
    figure.suptitle(_literally(f"{task(run)}, {labels([run])[0]}"), fontsize=11)
    return figure


def task(run: Run) -> str:
    """The run's environment with its unusual settings, such as noise; runs are comparable if this is the same."""
    env = run.experiment.env
    usual = Task(normalise=bool(env.family and env.family.normalise))
    given = [(f.name, getattr(env, f.name)) for f in fields(env) if f.name not in ("id", "custom")]
    words = [f"{name.replace('_', ' ')} {value}" for name, value in given if value != getattr(usual, name)]
    words += [f"{name.replace('_', ' ')} {value}" for name, value in settings(env.custom) if _is_word(value)]
    return f"{env.id} ({', '.join(words)})" if words else env.id


def _literally(text: str) -> str:
    """For a figure, in which what is between two dollars is a formula."""
    return text.replace("$", r"\$")


def _is_word(value: object) -> bool:
    return isinstance(value, bool | int | float | str)


def labels(runs: list[Run]) -> list[str]:
    """A name per run: its bonus if that is unique among the runs of an environment, otherwise its directory."""
    names, tasks = [_plain(run) for run in runs], [task(run) for run in runs]
    for finer in (lambda run: run.path.name, lambda run: str(run.path)):
        taken = Counter(zip(tasks, names, strict=True))
        rows = zip(runs, tasks, names, strict=True)
        names = [finer(run) if taken[where, name] > 1 else name for run, where, name in rows]
    return names


def _plain(run: Run) -> str:
    name = bonus_name(run.experiment.bonus)
    return "no bonus" if name == "none" else re.sub(r"[\w.]+:", "", name)  # a user's bonus, without its module


def _looks(runs: list[Run], names: list[str]) -> dict[str, tuple[str, Any]]:
    """A colour and a line per name, which no two in an environment share. In every environment the run named after its
    bonus, or else the first, gets the bonus's own colour; the others get one that is unused there, and if possible
    everywhere, or else the one that is used least."""
    colours: dict[str, str] = {}
    there: dict[str, list[str]] = {}
    rows = list(zip(runs, names, strict=True))
    for run, name in sorted(rows, key=lambda row: row[1] != _plain(row[0])):
        here = there.setdefault(task(run), [])
        if name not in colours:
            own, used = COLOURS.get(bonus_name(run.experiment.bonus)), Counter(colours[other] for other in here)
            everywhere = set(colours.values())
            spare = min((*PALETTE, *SPARE), key=lambda colour: (used[colour], colour in everywhere))
            colours[name] = own if own and not used[own] else spare
        here.append(name)
    lines: dict[str, int] = {}
    for name in dict.fromkeys(names):
        beside = {other for those in there.values() if name in those for other in those}
        taken = {lines[other] for other in beside & lines.keys() if colours[other] == colours[name]}
        lines[name] = min(set(range(len(taken) + 1)) - taken)
    return {name: (colours[name], DASHES[line % len(DASHES)]) for name, line in lines.items()}


def _thin(curve: Curves) -> Curves:
    last = len(curve.steps) - 1
    if last < POINTS:
        return curve
    kept = np.linspace(0, last, POINTS).round().astype(int)
    return Curves(curve.seeds, curve.steps[kept], curve.values[:, kept])


def _draw(ax: Axes, curve: Curves, colour: str, line: Any = "solid", label: str = "", faint: bool = False) -> None:
    """Thin lines for seeds, a bold one for their centre, a band for its uncertainty; ``faint`` if there are many."""
    curve = _thin(curve)
    # A curve with one point is a dot, not an invisible line.
    dot = "o" if np.isfinite(curve.values).any(0).sum() == 1 else ""
    if len(curve.seeds) > 1:
        ax.fill_between(curve.steps, *band(curve.values), color=colour, alpha=0.07 if faint else 0.16, linewidth=0)
        for seed, values in zip(curve.seeds, curve.values, strict=True):
            width, alpha = (0.5, 0.3) if faint else (0.7, 0.45)
            ax.plot(curve.steps, values, color=colour, linewidth=width, alpha=alpha, label=f"_{label} seed {seed}")
    top = 4 if label == "etd" else 3  # above all thin lines
    style = {"color": colour, "linestyle": line, "linewidth": 2.2, "marker": dot}
    ax.plot(curve.steps, centre(curve.values), label=label, zorder=top, **style)


def _finish(ax: Axes, metric: str) -> None:
    ax.set_xlim(left=0)
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.tick_params(labelsize=8, length=0)
    drawn = np.concatenate([np.asarray(line.get_ydata(), float) for line in ax.lines])
    finite = drawn[np.isfinite(drawn)]
    if not finite.size:
        reason = "too few episodes yet" if metric in EPISODIC else "nothing to show yet"
        ax.text(0.5, 0.5, reason, transform=ax.transAxes, ha="center", va="center", color="#777777")
        ax.set(xticks=[], yticks=[])
    elif finite.min() >= 0:
        # Rates get their whole scale and other metrics start at zero, to make small wiggles look small.
        rate = metric in ("return", "success") and finite.max() <= 1
        top = 1.0 if rate else finite.max() or 1.0
        ax.set_ylim(-0.03 * top, 1.06 * top)
        if top >= 10_000:
            ax.yaxis.set_major_formatter(EngFormatter(sep=""))


def grid(count: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """``count`` panels, three per row, or four if that fills the last row. Avoids pyplot, which keeps figures alive and
    may need a display."""
    columns = min(count, 3 if count % 4 else 4)
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


def save(figure: Figure, path: Path) -> Path:
    """Write a figure in the format of the suffix of ``path``; the same figure always gives the same file."""
    known = figure.canvas.get_supported_filetypes()
    if path.suffix.lstrip(".") not in known:
        raise UserError(f"A plot cannot be saved as {path.suffix!r}. Choose .png, .svg or .pdf.")
    with rc_context({"svg.hashsalt": "etd"}), files.replacing(path) as part:
        figure.savefig(part, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path
