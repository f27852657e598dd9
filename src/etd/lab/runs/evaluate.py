"""Evaluate trained policies over many fresh episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from rich.console import Console, Group
from rich.table import Table

from etd.core.terminal import Terminal
from etd.core.words import counted
from etd.lab.runs import session
from etd.lab.runs.store import Run
from etd.training import backend, memory
from etd.training.ledger import score

SCORES = ("success", "return", "length")


def evaluate(path: str | Path, episodes: int = 100, greedy: bool = False) -> dict[str, Any]:
    """Play ``episodes`` fresh episodes with every seed's policy. Returns the success rate (if the environment defines
    success), mean return and mean length; with achievements, also how often each was unlocked, and Crafter's score.

    >>> import etd
    >>> run = etd.train("MiniGrid-Empty-5x5-v0", "count", steps=64, num_envs=4, rollout_steps=16,
    ...                 fields={"ppo.minibatch": 32, "ppo.epochs": 1}, out="runs/example", quiet=True)
    >>> scores = etd.evaluate("runs/example", episodes=4)
    >>> sorted(scores["overall"])
    ['length', 'return', 'success']
    """
    memory.refuse_episodes(Run.open(path).require(), episodes)
    run, state = session.load(path)
    experiment, rows = run.experiment, []
    with backend.open(experiment) as agents:
        names = agents.spec.achievements
        shown = ["success"] * agents.spec.can_succeed + ["return", "length"] + ["score"] * bool(names)
        for index in range(experiment.seeds):
            went = agents.evaluate(state, index, episodes, greedy)
            found = {"success": went.success, "return": went.total, "length": went.length}
            means = {name: float(found[name].mean()) for name in found if name in shown}
            row: dict[str, Any] = {"seed": experiment.seed + index, **means}
            if went.achieved is not None:
                rates = went.achieved.mean(0)
                row["score"] = float(score(jnp.asarray(rates)))
                row["unlocked"] = dict(zip(names, map(float, rates), strict=True))
            rows.append(row)
    overall: dict[str, Any] = {name: float(np.mean([row[name] for row in rows])) for name in shown}
    if names:
        overall["unlocked"] = {name: float(np.mean([row["unlocked"][name] for row in rows])) for name in names}
    return {"env": experiment.env.id, "episodes": episodes, "greedy": greedy, "seeds": rows, "overall": overall}


def table(scores: dict[str, Any], console: Console | None = None) -> None:
    """Print the result of ``evaluate``."""
    how = "greedy actions" if scores["greedy"] else "sampled actions"
    title = f"{scores['env']}, {counted(scores['episodes'], 'fresh episode')} per seed, {how}"
    shown = [name for name in (*SCORES, "score") if name in scores["overall"]]
    grid = Table("seed", *shown)
    for column in grid.columns:
        column.justify = "right"
    for row in scores["seeds"]:
        grid.add_row(str(row["seed"]), *_cells(row, shown))
    if len(scores["seeds"]) > 1:
        grid.add_section()
        grid.add_row("all", *_cells(scores["overall"], shown))
    parts: list[Any] = [title, grid]
    if "unlocked" in scores["overall"]:
        parts.append(_unlocked(scores))
    (console or Terminal()).print(Group(*parts))


def _cells(row: dict[str, Any], shown: list[str]) -> list[str]:
    how = {"success": ".1%", "return": ".3f", "length": ".1f", "score": ".2f"}
    return [f"{row[name]:{how[name]}}" for name in shown]


def _unlocked(scores: dict[str, Any]) -> Table:
    """The achievements, most frequent first."""
    grid = Table("achievement", "unlocked in")
    grid.columns[1].justify = "right"
    for name, rate in sorted(scores["overall"]["unlocked"].items(), key=lambda pair: -pair[1]):
        grid.add_row(name.replace("_", " "), f"{rate:.1%}")
    return grid
