"""Speed at many sizes: how it grows with the environments or seeds at once, and where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullLocator

from etd.lab.report import plot
from etd.training import memory

SLOWER = 0.1
"""A band is slow if all together lose more than this share of their speed to the next smaller size."""


class Speed(NamedTuple):
    """One measurement."""

    what: str
    """whose"""
    batch: int
    """environments or seeds at once"""
    steps_per_s: float
    """of all together"""
    compile_s: float = 0.0
    memory_bytes: float | None = None
    """None where nobody counts them"""

    @property
    def of_each(self) -> float:
        return self.steps_per_s / self.batch


def loss(smaller: Speed, larger: Speed) -> float:
    """The share of the speed that is lost from one size to a larger one."""
    return 1 - larger.steps_per_s / smaller.steps_per_s


def slow_bands(speeds: Sequence[Speed]) -> list[tuple[int, int]]:
    """The sizes between which more at once are more than ``SLOWER`` slower, neighbours joined."""
    bands: list[tuple[int, int]] = []
    for smaller, larger in pairwise(speeds):
        if loss(smaller, larger) > SLOWER:
            joined = bands and bands[-1][1] == smaller.batch
            begin = bands.pop()[0] if joined else smaller.batch
            bands.append((begin, larger.batch))
    return bands


def line(speed: Speed, smaller: Speed | None) -> str:
    """A measurement in words, and how it compares with that of the next smaller size."""
    words = f"{speed.what:20}{speed.batch:7,} at once{speed.steps_per_s:14,.0f} steps/s{speed.of_each:12,.0f} each"
    words += "" if speed.memory_bytes is None else f"{memory.readable(speed.memory_bytes):>10}"
    if smaller is not None and loss(smaller, speed) > SLOWER:
        words += f"   {loss(smaller, speed) * 100:.0f} % slower than at {smaller.batch:,}"
    return words


def draw(found: Sequence[Speed], of: str, title: str, path: Path) -> Path:
    """Write steps per second against the number of environments or seeds at once, ``of`` which there are many: all
    together, and each. Slow bands of the first in ``found`` are grey; a single measurement is a dot."""
    figure, axes = plot.grid(2, (5.6, 3.8))
    everyone, each = axes
    for what, colour in zip(dict.fromkeys(one.what for one in found), _COLOURS, strict=False):
        rows = [one for one in found if one.what == what]
        sizes = [row.batch for row in rows]
        everyone.plot(sizes, [row.steps_per_s for row in rows], "o-", color=colour, markersize=4, label=what)
        each.plot(sizes, [row.of_each for row in rows], "o-", color=colour, markersize=4)
    everyone.set_ylabel("steps per second, all together")
    each.set_ylabel("steps per second, each")
    bands = slow_bands([one for one in found if one.what == found[0].what])
    for ax in axes:
        for k, band in enumerate(bands):
            label = "" if k else f"more than {SLOWER * 100:.0f} % slower than at the size before"
            ax.axvspan(*band, color="#999999", alpha=0.25, linewidth=0, label=label)
        _scale(ax, [one.batch for one in found])
        ax.set_xlabel(f"{of} at once")
    figure.suptitle(title, fontsize=11)
    figure.legend(*everyone.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return plot.save(figure, path)


def _scale(ax: Axes, sizes: Sequence[int]) -> None:
    """Logarithmic axes, with a mark at every size, or at fewer if there are many; at both ends always."""
    marks = sorted(set(sizes))
    ax.set(xscale="log", yscale="log")
    ax.set_xticks(sorted({marks[0], *marks[:: -1 - len(marks) // 9]}))
    low, high = ax.get_ylim()
    ax.yaxis.set_major_locator(LogLocator(subs=(1,) if high > 100 * low else (1, 2, 5)))
    ax.set_ylim(low / 1.5, high * 1.5)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))
    ax.yaxis.set_major_formatter(EngFormatter(sep=""))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
    ax.tick_params(labelsize=8, length=0)


_COLOURS = (plot.COLOURS["etd"], *plot.PALETTE)
