"""Playing whole episodes in host environments, without learning, and replaying one to draw it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import numpy as np

from etd.core.types import EnvSpec, Rollout, Transition
from etd.envs.host.env import HostEnv, Normaliser, Running
from etd.envs.host.worker import episode_seed, fingerprint
from etd.training import compiled
from etd.training.collect import to_env
from etd.training.experiment import Experiment
from etd.training.host_collect import HostCollector
from etd.training.learn import TrainState

CHUNK = 64
"""Steps between checks whether every environment has played its share."""


class Played(NamedTuple):
    """One finished episode."""

    seed: int
    """the seed of its reset, for replaying it"""
    actions: np.ndarray
    """[T] or [T, size], as passed to the environment"""
    rewards: np.ndarray
    """[T]"""
    success: bool
    achieved: np.ndarray
    """[K] bool"""


def play(
    experiment: Experiment,
    env: HostEnv,
    state: TrainState,
    index: int,
    episodes: int,
    greedy: bool = False,
    say: Callable[[str], None] = print,
) -> list[Played]:
    """``episodes`` of the policy of the seed at ``index``, divided evenly between fresh environments.

    If observations are normalised, these environments start with the pooled statistics of the training environments.
    """
    slots = min(episodes, experiment.num_envs)
    one: TrainState = jax.tree.map(lambda leaf: leaf[index : index + 1], state)
    act, draw = compiled.make_actor(experiment), compiled.make_play_noise(experiment, CHUNK, slots, greedy)
    hidden = np.zeros((1, slots, state.hidden.shape[-1]), np.float32)
    recorders = [EpisodeRecorder(env.spec, experiment.seed + index, slot) for slot in range(slots)]
    shares = [(recorder, episodes // slots + (slot < episodes % slots)) for slot, recorder in enumerate(recorders)]
    fresh = _fresh(env, slots, jax.device_get(one.envs))
    collector = HostCollector(env, [experiment.seed + index], "play", fresh, say)
    try:
        for chunk in itertools.count():
            hidden, rollout = collector.rollout(act, one.learner.policy, hidden, np.asarray(draw(one.key, chunk)))
            for slot, recorder in enumerate(recorders):
                recorder.enter(*jax.tree.map(lambda leaf, n=slot: leaf[0, :, n], (rollout, collector.played)))
            if all(len(recorder.found) >= share for recorder, share in shares):
                return [one for recorder, share in shares for one in recorder.found[:share]]
    finally:
        collector.close()
    raise AssertionError  # the loop never ends by itself


def _fresh(env: HostEnv, slots: int, trained: Running) -> Running:
    """[1, slots] environments at the start of their first episodes."""
    running = env.begin(slots)
    if trained.normaliser is not None:
        running = running._replace(normaliser=Normaliser(*(f[0] for f in trained.normaliser)).pooled(slots))
    return jax.tree.map(lambda leaf: leaf[None], running)


class EpisodeRecorder:
    """Collects the finished episodes of one environment, except those lost with a worker."""

    def __init__(self, spec: EnvSpec, seed: int, slot: int):
        self.spec, self.name = spec, ("play", seed, slot)
        self.parts: list[dict[str, np.ndarray]] = []
        self.found: list[Played] = []

    def enter(self, rollout: Rollout, played: dict[str, np.ndarray]) -> None:
        """Add more steps, leaves [T, ...]."""
        success = self.spec.success(rollout.step)
        columns = {"action": rollout.action, "reward": rollout.step.reward, "success": success, **played}
        if rollout.step.achieved is not None:
            columns["achieved"] = rollout.step.achieved
        begin = 0
        for end in [*np.flatnonzero(rollout.done) + 1, None]:
            self.parts.append({name: np.asarray(column)[begin:end] for name, column in columns.items()})
            if end is not None:
                self._finish()
                begin = end

    def _finish(self) -> None:
        whole = {name: np.concatenate([part[name] for part in self.parts]) for name in self.parts[0]}
        self.parts = []
        if whole["lost"][-1]:
            return
        achieved = whole["achieved"][-1] if "achieved" in whole else np.zeros(0, bool)
        seed = episode_seed(*self.name, int(whole["episode"][-1]))
        actions = to_env(whole["action"], self.spec.action)
        self.found.append(Played(seed, actions, whole["reward"], bool(whole["success"][-1]), achieved))


def replay(
    env: HostEnv,
    played: Played,
    normaliser: Normaliser | None,
    shown: Collection[int],
    say: Callable[[str], None] = print,
) -> tuple[dict[int, np.ndarray], np.ndarray, Transition]:
    """Replay an episode: pictures after the steps ``shown``, observations [T+1, ...] and transitions [T, ...]."""
    sim: Any = env.make()
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
        say(f"{env.id} is not deterministic: the pictures show a different episode from the numbers.")
    columns: Any = (whole[1:], np.array(reward, np.float32), np.array(terminated), np.array(truncated), names)
    return pictures, whole, Transition(*columns)
