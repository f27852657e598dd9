"""The paper's maze studies, one command each: plots, scores and an interactive page."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from etd.bonuses import LearnedBonus
from etd.core import files
from etd.core.errors import UserError, unknown
from etd.core.terminal import Terminal
from etd.core.words import counted
from etd.envs.maze import Position
from etd.lab.mazes import clickable, maps
from etd.lab.mazes.distance import CHUNK, Distances, check_counts, distance, find, grid, rivals, temporal
from etd.lab.mazes.scores import MEANING, interval, table
from etd.lab.report import page
from etd.lab.report.plot import save
from etd.lab.runs.progress import Chunks
from etd.lab.runs.session import safe_name

Values = dict[str, dict[str, list[float]]]
"""A value per seed, by learner and score."""

SHOWN = ("path spearman", "path spearman, all", "exact spearman, all", "triangle broken", "asymmetry pearson", "r2")
"""Scores in the terminal's table; the files have all of them."""
DATA = (100, 300, 1000)
"""Numbers of walks in the study ``data``."""


@dataclass(frozen=True)
class Options:
    """What a user can choose; None is the study's default."""

    maze: str | None = None
    walks: int = 100
    length: int = 50
    discount: float = 0.99
    energy: str = "mrn+potential"
    loss: str = "symmetric"
    seeds: int = 5
    seed: int = 0
    steps: int | None = None
    noise: bool = False
    start: Position | None = None
    red: Position | None = None
    to: bool = False


class Study(NamedTuple):
    """A maze and the learners compared in it."""

    maze: str
    learners: Callable[[Options], dict[str, LearnedBonus]]
    columns: int = 4
    noise: bool = False
    steps: int = 600
    """of training, chosen to take minutes on two cores"""


def _rivals(options: Options) -> dict[str, LearnedBonus]:
    return rivals(options.length, options.discount, options.energy, options.loss)


def _etd(options: Options) -> dict[str, LearnedBonus]:
    return {"etd": temporal(options.discount, options.energy, options.loss)}


def _one_way(options: Options) -> dict[str, LearnedBonus]:
    energy, loss = options.energy, options.loss
    return {
        **_etd(options),
        "etd, symmetric half": temporal(options.discount, energy, loss, symmetric=True),
        "etd, l2": temporal(options.discount, "l2", loss),
    }


STUDIES = {
    "spiral": Study("Spiral", _rivals),
    "noisy": Study("Spiral", lambda options: grid(options.discount), columns=3, noise=True, steps=300),
    "hard": Study("Interlocked", _rivals, steps=300),
    "one-way": Study("OneWay", _one_way),
    "data": Study("Spiral", _etd, columns=2),
}


def run(name: str, options: Options, out: Path, console: Console | None = None) -> list[Path]:
    """Learn, score, plot and write; returns the files. ``data`` studies the spiral with more and more walks."""
    if name not in STUDIES:
        raise unknown("study", name, STUDIES, f"Studies are {', '.join(STUDIES)}.")
    console = console or Terminal(soft_wrap=True)
    red = _red(name, options)
    files.refuse_unwritable(out, folder=True)
    study, sizes = STUDIES[name], DATA if name == "data" else (options.walks,)
    steps = study.steps if options.steps is None else options.steps
    check_counts(walks=options.walks, seeds=options.seeds, steps=steps)
    options = replace(options, steps=steps)
    learners = study.learners(options)
    began = time.monotonic()
    found = []
    with Chunks(console, len(sizes) * len(learners) * options.seeds * -(-steps // CHUNK)) as tell:
        for walks in sizes:
            found.append(_learn(study, options, learners, walks, steps, tell))
    seconds = time.monotonic() - began
    values = [table(distances, red, options.to) for distances in found]
    for distances, scores in zip(found, values, strict=True):
        console.print(_table(distances, scores, options))
    for score in SHOWN:
        console.print(f"{score}: {MEANING[score]}")
    console.print(f"{seconds:.0f} s")
    return _write(name, options, red, found, values, seconds, out)


def _learn(
    study: Study,
    options: Options,
    learners: dict[str, LearnedBonus],
    walks: int,
    steps: int,
    tell: Callable[[str], None],
) -> Distances:
    return distance(
        study.maze if options.maze is None else options.maze,
        walks=walks,
        length=options.length,
        discount=options.discount,
        learners=learners,
        seeds=options.seeds,
        seed=options.seed,
        steps=steps,
        noise=study.noise or options.noise,
        start=options.start,
        tell=tell,
    )


def _red(name: str, options: Options) -> int:
    """The index of the cell that distances are drawn from: by default the first free cell, the paper's (1, 1)."""
    maze = find(STUDIES[name].maze if options.maze is None else options.maze)
    if options.red is None:
        return 0
    if options.red not in maze.cells:
        row, column = options.red
        raise UserError(f"The red square {options.red}, line {row + 1}, column {column + 1}, is not a free cell.")
    return maze.cells.index(options.red)


def stem(name: str, maze: str | None) -> str:
    """What a study's files are named: as it is or, with another maze, as that maze, but never as another study."""
    if maze is None:
        return name
    found = safe_name(maze if name == "spiral" else f"{name}-{maze}")
    return f"{found}-maze" if found.lower() in STUDIES else found


# Files -----------------------------------------------------------------------------------------------------------


def _write(
    name: str, options: Options, red: int, found: list[Distances], values: list[Values], seconds: float, out: Path
) -> list[Path]:
    last, scores = found[-1], values[-1]
    base = stem(name, None if options.maze is None else last.maze.name)
    numbers = _numbers(name, options, found, values, seconds, out / f"{base}.json")
    paths = [numbers, _csv(found, values, out / f"{base}.csv")]
    seed = _median(scores)
    pictures = [(out / f"{base}.png", _picture(last, scores, red, seed, STUDIES[name].columns, options.to))]
    if len(found) > 1:
        sizes = [distances.walks for distances in found]
        pictures.append((out / f"{base}-curve.png", maps.against_data(sizes, values, "path spearman")))
    for path, figure in pictures:
        paths.append(save(figure, path))
    exact = {"shortest path": last.path, "exact successor distance": last.successor}
    learned = {maps.NAMES.get(key, key): each[seed] for key, each in last.learned.items()}
    content = clickable.body(last.maze, learned | exact, red, options.to) + _scores(found, values, options)
    title = f"Distances in {last.maze.name}, {_walks(last)}"
    return [*paths, clickable.write(out / f"{base}.html", title, content)]


def _median(values: Values) -> int:
    """The index of the seed to show: the median by the last learner's first score."""
    first = list(values.values())[-1][SHOWN[0]]
    return int(np.argsort(first)[len(first) // 2])


def _picture(found: Distances, values: Values, red: int, seed: int, columns: int, to: bool) -> Any:
    side = (slice(None), red) if to else red
    panels = {name: learned[seed][side] for name, learned in found.learned.items()}
    panels["shortest path (truth)"] = found.path[side]
    notes = {}
    for name, rows in values.items():
        mean, low, high = interval(rows["path spearman"])
        notes[name] = f"Spearman {mean:.2f} [{low:.2f}, {high:.2f}]"
    words = (
        f"{found.maze.name}{' with noise' * found.maze.noise}: distance {'to' if to else 'from'} the red square, "
        f"{_walks(found)}; seed {found.seeds[seed]}, one of {len(found.seeds)}"
    )
    return maps.draw(found.maze, panels, red, columns, words, notes)


def _numbers(
    name: str, options: Options, found: list[Distances], values: list[Values], seconds: float, path: Path
) -> Path:
    rows = [
        {
            "walks": distances.walks,
            "pieces": list(distances.pieces),
            "scores": {
                learner: {score: {**interval(v)._asdict(), "seeds": v} for score, v in each.items()}
                for learner, each in scores.items()
            },
        }
        for distances, scores in zip(found, values, strict=True)
    ]
    settings = {**vars(options), "maze": found[0].maze.name, "walks": [row["walks"] for row in rows]}
    content = {"study": name, "settings": settings, "seconds": round(seconds, 1), "results": rows}
    files.write(path, json.dumps(_rounded(content), indent=1) + "\n")
    return path


def _rounded(value: Any) -> Any:
    """Floats to five digits, NaN as null."""
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if np.isfinite(value) else None
    return value


def _csv(found: list[Distances], values: list[Values], path: Path) -> Path:
    with files.replacing(path) as part, part.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["walks", "learner", "score", "mean", "low", "high"])
        for distances, scores in zip(found, values, strict=True):
            for learner, each in scores.items():
                for score, v in each.items():
                    writer.writerow([distances.walks, learner, score, *(f"{x:.5g}" for x in interval(v))])
    return path


# Tables ----------------------------------------------------------------------------------------------------------


def _cell(values: list[float]) -> str:
    mean, low, high = interval(values)
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]" if len(values) > 1 else f"{mean:.3f}"


def _title(found: Distances, options: Options) -> str:
    over = f"{counted(len(found.seeds), 'seed')}{', mean and 95 % interval' * (len(found.seeds) > 1)}"
    pieces = ", ".join(map(str, found.pieces))
    return (
        f"{found.maze.name}, {_walks(found)}, {over}; {'to' if options.to else 'from'} the red square, or over all "
        f"pairs. Connected pieces of the maze in the walks, by seed: {pieces}."
    )


def _walks(found: Distances) -> str:
    return f"{counted(found.walks, 'walk')} of {counted(found.maze.length, 'step')}"


def _table(found: Distances, values: Values, options: Options) -> Table:
    shown = Table("learner", *SHOWN, title=_title(found, options), title_justify="left", title_style="")
    for learner, each in values.items():
        shown.add_row(learner, *(_cell(each[score]) for score in SHOWN))
    return shown


def _scores(found: list[Distances], values: list[Values], options: Options) -> str:
    """All scores as tables for the page."""
    parts = ["<section><h2>Scores</h2>"]
    for distances, scores in zip(found, values, strict=True):
        rows = [[_explained(score), *(_cell(each[score]) for each in scores.values())] for score in MEANING]
        parts.append(f"<p>{page.text(_title(distances, options))}</p>")
        parts.append(page.table("scores", ["score", *scores], rows, "dense"))
    return "\n".join([*parts, "</section>"])


def _explained(score: str) -> page.Html:
    return page.Html(f"{page.text(score)}<small>{page.text(MEANING[score])}</small>")
