"""Film a trained policy: one episode, with its bonus beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from etd.core import files
from etd.core.errors import UserError
from etd.lab.film import distance_map
from etd.lab.film.frames import Film, frame, write_gif, write_mp4
from etd.lab.report.curves import by_seed
from etd.lab.runs import session
from etd.lab.runs.sinks import extra
from etd.lab.runs.store import Run, refuse_run_file
from etd.training import backend, memory
from etd.training.config import bonus_name
from etd.training.learn import TrainState

FRAMES = 120
"""The most frames in a film; a longer episode skips some steps, never its last."""


def film(
    path: Path,
    out: Path,
    seed: int | None = None,
    episodes: int = 3,
    greedy: bool = False,
    distance: bool = False,
) -> Path:
    """Play fresh episodes and write the first success, or else the one with the highest return, as .gif or .mp4.

    ``seed`` chooses one of the run's agents; the default is the best at the end of training. ``distance`` also shows
    the learned distance from the agent to every reachable cell.
    """
    if out.suffix not in (".gif", ".mp4"):
        raise UserError(f"A film cannot be saved as {out.suffix!r}. Choose .gif or .mp4.")
    memory.refuse_episodes(Run.open(path).require(), episodes, film=True)
    refuse_run_file(out)
    if out.suffix == ".mp4":
        extra("imageio_ffmpeg", "video")  # fail before the work, not after it
    run, state = session.load(path)
    index = choose(run, seed)
    if distance:
        distance_map.check(run.experiment.env.make(), run.experiment.bonus)  # likewise
    recorded = record(run, state, index, episodes, greedy)
    if distance:
        learner = jax.tree.map(lambda leaf: leaf[index], state.learner.bonus.learner)
        states = recorded.episode.states
        seen = distance_map.look(run.experiment.env.make(), run.experiment.bonus, learner, states)
        recorded = replace(recorded, inside=seen)
    frames = [frame(recorded, time) for time in shown_steps(len(recorded.episode))]
    # Slow enough to follow a short film, fast enough not to bore in a long one.
    seconds = float(np.clip(10 / len(frames), 0.06, 0.25))
    with files.replacing(out) as part:
        (write_gif if out.suffix == ".gif" else write_mp4)(frames, part, seconds)
    return out


def shown_steps(length: int) -> list[int]:
    """The steps of an episode after which a frame is drawn."""
    return np.unique(np.linspace(0, length, min(FRAMES, length + 1)).round().astype(int)).tolist()


def record(run: Run, state: TrainState, index: int, episodes: int, greedy: bool) -> Film:
    """The episode worth showing among ``episodes`` played by the agent at ``index``."""
    with backend.open(run.experiment) as agents:
        episode = agents.film(state, index, episodes, greedy, shown_steps)
        return Film(agents.spec, bonus_name(run.experiment.bonus), episode)


def choose(run: Run, seed: int | None) -> int:
    """The index of the agent to play: that of ``seed``, or else the one with the highest final return."""
    if seed is not None:
        return run.index(seed)
    final = by_seed(run, "return").values[:, -1:]
    return int(np.nan_to_num(final, nan=-np.inf).sum(1).argmax())
