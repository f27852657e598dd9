"""What a trained policy does: a film of one episode with its bonus beside it, and its scores over many."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from etd.core.errors import UserError
from etd.core.keys import named
from etd.core.types import Array, Key
from etd.lab import inside, session
from etd.lab.curves import by_seed
from etd.lab.fields import bonus_name
from etd.lab.frames import Episode, frame, write_gif, write_mp4
from etd.lab.sinks import extra
from etd.lab.store import Run
from etd.train import trainer
from etd.train.evaluate import replay
from etd.train.learn import TrainState

FRAMES = 120
"""At most; a longer episode skips some, never its last."""

_replay = jax.jit(replay, static_argnums=0)


def film(
    path: Path,
    out: Path,
    seed: int | None = None,
    episodes: int = 3,
    greedy: bool = False,
    distance: bool = False,
) -> Path:
    """Play fresh levels and write the first success, or else the episode of the highest return, as .gif or .mp4.

    ``seed`` names one of the run's agents; without it, the one that did best at the end of training plays. With
    ``distance``, the model's distance from the agent to every reachable cell is drawn beside the level.
    """
    if out.suffix not in (".gif", ".mp4"):
        raise UserError(f"A film cannot end in {out.suffix!r}. Choose .gif or .mp4.")
    if episodes < 1:
        raise UserError(f"{episodes} episodes cannot be played. Ask for at least 1.")
    if out.suffix == ".mp4":
        extra("imageio_ffmpeg", "video")  # before the work, not after it
    run, state = session.load(path)
    index = choose(run, seed)
    if distance:
        inside.check(run.experiment.env.make(), run.experiment.bonus)  # before the work
    episode = record(run, state, index, episodes, greedy)
    if distance:
        learner = jax.tree.map(lambda leaf: leaf[index], state.minds.bonus.learner)
        seen = inside.look(episode.env, run.experiment.bonus, learner, episode.states)
        episode = replace(episode, inside=seen)
    shown = np.unique(np.linspace(0, len(episode), min(FRAMES, len(episode) + 1)).round().astype(int))
    frames = [frame(episode, int(t)) for t in shown]
    out.parent.mkdir(parents=True, exist_ok=True)
    # A short film is slow enough to follow, a long one does not bore.
    seconds = float(np.clip(10 / len(frames), 0.06, 0.25))
    (write_gif if out.suffix == ".gif" else write_mp4)(frames, out, seconds)
    return out


def record(run: Run, state: TrainState, index: int, episodes: int, greedy: bool) -> Episode:
    """The episode worth showing among ``episodes`` played by the agent at ``index``."""
    experiment = run.experiment
    key = named(state.key[index], "film")
    played = trainer.player(experiment, episodes, greedy)(state, index, key)
    success = np.asarray(played.success)
    best = int(success.argmax()) if success.any() else int(np.asarray(played.total).argmax())
    length = int(played.length[best])
    env = experiment.env.make()
    actions = played.rollout.action[:length, best]
    start = jax.tree.map(lambda leaf: leaf[best], played.start)
    return Episode(
        env,
        bonus_name(experiment.bonus),
        jax.device_get(_replay(env, start, actions, key)),
        np.asarray(actions),
        np.asarray(played.rollout.step.reward[:length, best]),
        np.asarray(played.bonus[:length, best]),
        bool(success[best]),
    )


def choose(run: Run, seed: int | None) -> int:
    """The index of the agent that plays: that of ``seed``, else the one with the highest final return."""
    first, count = run.experiment.seed, run.experiment.seeds
    if seed is None:
        final = by_seed(run, "return").values[:, -1:]
        return int(np.nan_to_num(final, nan=-np.inf).sum(1).argmax())
    if not first <= seed < first + count:
        known = f"seed {first}" if count == 1 else f"seeds {first} to {first + count - 1}"
        raise UserError(f"{run.path} has no seed {seed}; it has {known}.")
    return seed - first


# Scores ----------------------------------------------------------------------------------------------------------


SCORES = ("success", "return", "length")


def evaluate(path: Path, episodes: int = 100, greedy: bool = False) -> dict[str, Any]:
    """Play ``episodes`` fresh levels with every seed's policy: success rate, mean return and mean length."""
    if episodes < 1:
        raise UserError(f"{episodes} episodes cannot be played. Ask for at least 1.")
    run, state = session.load(path)
    play = trainer.player(run.experiment, episodes, greedy)

    # Compiled anew with only what is asked for, so that the bonus is not computed.
    @jax.jit
    def means(state: TrainState, index: int, key: Key) -> tuple[Array, ...]:
        played = play(state, index, key)
        return played.success.mean(), played.total.mean(), played.length.mean()

    rows = []
    for index in range(run.experiment.seeds):
        values = map(float, means(state, index, named(state.key[index], "evaluate")))
        rows.append({"seed": run.experiment.seed + index, **dict(zip(SCORES, values, strict=True))})
    overall = {name: float(np.mean([row[name] for row in rows])) for name in SCORES}
    return {"env": run.experiment.env.id, "episodes": episodes, "greedy": greedy, "seeds": rows, "overall": overall}


def table(scores: dict[str, Any], console: Console | None = None) -> None:
    """Print what ``evaluate`` returned."""
    how = "likeliest actions" if scores["greedy"] else "sampled actions"
    title = f"{scores['env']}, {scores['episodes']} fresh levels per seed, {how}"
    grid = Table("seed", *SCORES)
    for column in grid.columns:
        column.justify = "right"
    for row in scores["seeds"]:
        grid.add_row(str(row["seed"]), f"{row['success']:.1%}", f"{row['return']:.3f}", f"{row['length']:.1f}")
    if len(scores["seeds"]) > 1:
        grid.add_section()
        mean = scores["overall"]
        grid.add_row("all", f"{mean['success']:.1%}", f"{mean['return']:.3f}", f"{mean['length']:.1f}")
    (console or Console(highlight=False)).print(title, grid, sep="\n")
