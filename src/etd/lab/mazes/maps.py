"""Plots of distances in a maze, with every cell coloured by its distance, and of scores against the amount of data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from etd.envs.maze import CONVEYORS, Maze, parse
from etd.lab.mazes.scores import interval
from etd.lab.report.plot import COLOURS, PALETTE

NAMES = {"inverse": "inverse dynamics", "ec": "likelihood (EC)", "etd": "ETD"}
"""Names of learners in the plots."""
ARROWS = dict(zip(CONVEYORS, "↑↓←→", strict=True))


def draw(
    maze: Maze, panels: Mapping[str, np.ndarray], red: int, columns: int, words: str, notes: Mapping[str, str]
) -> Figure:
    """One map per panel of the cells' values [S], each on its own scale, darker for farther; ``notes`` go below."""
    rows = -(-len(panels) // columns)
    height, width = maze.index.shape
    size = 2.5
    figure = Figure(figsize=(columns * size, rows * (size * height / width + 0.42) + 0.3), dpi=130)
    figure.set_layout_engine("constrained", w_pad=0.05, h_pad=0.05)
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for (name, values), ax in zip(panels.items(), axes, strict=False):
        _map(ax, maze, values, red)
        ax.set_title(NAMES.get(name, name), fontsize=10)
        ax.set_xlabel(notes.get(name, ""), fontsize=8, color="#444444")
    for ax in axes[len(panels) :]:
        ax.remove()
    figure.suptitle(words, fontsize=9, color="#444444")
    return figure


def _map(ax: Axes, maze: Maze, values: np.ndarray, red: int) -> None:
    index = maze.index
    shown = np.where(np.isfinite(values), values, np.nan)
    cells = np.where(index >= 0, shown[np.maximum(index, 0)], np.nan)
    ax.set_facecolor("#8a8d93")
    ax.imshow(cells, cmap=colormaps["Blues"], interpolation="nearest")
    drawn = parse(maze.text)
    for row, column in maze.cells:
        if drawn[row][column] in ARROWS:
            ax.text(column, row, ARROWS[drawn[row][column]], ha="center", va="center", fontsize=7, color="#d95f02")
    row, column = maze.cells[red]
    ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color="#d62728", linewidth=0))
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def against_data(sizes: Sequence[int], found: Sequence[Mapping[str, Mapping[str, list[float]]]], score: str) -> Figure:
    """Mean and 95 % interval of every learner's score against the number of walks; dots are seeds."""
    figure = Figure(figsize=(6.4, 3.8), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    for spare, name in enumerate(found[0]):
        colour = COLOURS.get(name, PALETTE[spare % len(PALETTE)])
        means = [interval(rows[name][score]) for rows in found]
        ax.fill_between(sizes, [m.low for m in means], [m.high for m in means], color=colour, alpha=0.15, linewidth=0)
        ax.plot(sizes, [m.mean for m in means], color=colour, linewidth=2.2, marker="o", label=NAMES.get(name, name))
        for size, rows in zip(sizes, found, strict=True):
            ax.plot([size] * len(rows[name][score]), rows[name][score], ".", color=colour, alpha=0.5, markersize=5)
    ax.set_xscale("log")
    ax.set_xticks(list(sizes), [f"{size:,}" for size in sizes])
    ax.minorticks_off()
    ax.set(xlabel="walks", ylabel=score, ylim=(-0.4, 1.02))
    ax.axhline(0.95, color="#999999", linewidth=0.8, linestyle=(0, (4, 3)))
    ax.grid(color="#e6e6e6", linewidth=0.8)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.legend(frameon=False, loc="lower right")
    return figure
