"""An episode of a host's environment, played again to be looked at: its pictures, what was seen, and its bonus."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from etd.core.types import Transition
from etd.envs import host as suites
from etd.envs.host.env import HostEnv, Normaliser
from etd.envs.host.worker import fingerprint
from etd.train import compiled, host
from etd.train.experiment import Experiment
from etd.train.host import Played
from etd.train.learn import TrainState


class Rerun(NamedTuple):
    """One episode, step by step."""

    pictures: dict[int, np.ndarray]
    """[height, width, 3] uint8 after so many steps"""
    played: Played
    bonus: np.ndarray
    """[T]"""


def best(
    experiment: Experiment,
    env: HostEnv,
    state: TrainState,
    index: int,
    episodes: int,
    greedy: bool,
    shown: Callable[[int], Collection[int]],
) -> Rerun:
    """The first success among ``episodes`` of the agent at ``index``, or else the one of the highest return. Of an
    episode's length ``shown`` makes the steps to take pictures after: all of a long one would fill the memory."""
    played = host.play(experiment, env, state, index, episodes, greedy)
    chosen = next((one for one in played if one.success), max(played, key=lambda one: one.rewards.sum()))
    normaliser = jax.device_get(jax.tree.map(lambda leaf: leaf[index], state.envs.normaliser))
    pictures, obs, step = again(env, chosen, normaliser, shown(len(chosen.actions)))
    bonus = compiled.make_episode_scorer(experiment)(state, index, jnp.asarray(obs), jnp.asarray(chosen.actions), step)
    return Rerun(pictures, chosen, np.asarray(bonus))


def again(
    env: HostEnv, played: Played, normaliser: Normaliser | None, shown: Collection[int]
) -> tuple[dict[int, np.ndarray], np.ndarray, Transition]:
    """The pictures after the steps ``shown``, observations [T+1, ...] and transitions [T, ...] of an episode."""
    sim: Any = suites.make(env.id)
    try:
        seen = [sim.reset(seed=played.seed)[0]]
        pictures, rows = {0: sim.render()}, []
        for time, action in enumerate(played.actions, 1):
            obs, *row, _ = sim.step(action if action.ndim else int(action))
            seen.append(obs)
            rows.append(row)
            if time in shown:
                pictures[time] = sim.render()
    finally:
        sim.close()
    names = np.array([fingerprint(obs) for obs in seen[1:]], np.uint32)
    whole = np.stack(seen)
    if normaliser is not None:
        whole = normaliser.pooled(1)(whole, np.zeros(len(whole), int))
    reward, terminated, truncated = zip(*rows, strict=True)
    if not np.allclose(reward, played.rewards):
        print(f"{env.id} does not repeat itself: the pictures are of another episode than the numbers.")
    columns: Any = (whole[1:], np.array(reward, np.float32), np.array(terminated), np.array(truncated), names)
    return pictures, whole, Transition(*columns)
