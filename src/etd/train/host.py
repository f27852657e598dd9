"""Acting where the environments live on the host: a loop over steps; learning is the same compiled function.

One pool serves all seeds. Each step is one compiled call of the policy for half the environments of every seed, while
the other half steps; the rollout is assembled on the host and moves to the device once.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np

from etd.core.types import EnvSpec, Metrics, PyTree, Rollout, Transition
from etd.envs.host.env import HostEnv, Normaliser, Running
from etd.envs.host.pool import WorkerPool
from etd.envs.host.worker import episode_seed
from etd.train import compiled
from etd.train.collect import to_env
from etd.train.experiment import Experiment
from etd.train.learn import TrainState

LASTING = ("obs", "value", "hidden", "features")
"""Fields of a Rollout that have a row more than it has steps."""


class HostCollector:
    """S x N environments of the host, and the loop that acts in them. Arrays are [S, N, ...] NumPy."""

    def __init__(
        self, env: HostEnv, seeds: list[int], num_envs: int, stream: str, tell: Callable[[str], None] = print
    ) -> None:
        self.env, self.spec, self.tell = env, env.spec, tell
        self.shape = (len(seeds), num_envs)
        half = -(-num_envs // 2)
        self.groups = [slice(0, half), slice(half, num_envs)][: 1 + (num_envs > 1)]
        names = [(seed, number) for seed in seeds for number in range(num_envs)]
        self.pool = WorkerPool(env.id, self.spec, names, [number // half for _, number in names], stream, tell)
        self.waited = 0.0
        """seconds spent waiting for environments"""
        self.played: dict[str, np.ndarray] = {}
        """of the last rollout [S, T, N]: the number of each step's episode, and whether it ended it for being lost"""

    def begin(self, saved: Running) -> None:
        """Play every environment to where ``saved`` has it."""
        self.running: Running = jax.tree.map(np.array, saved)  # a copy to write in
        time, actions, present = (self._flat(x) for x in self.running[1:4])
        past = {row: (actions[row, : time[row]], int(present[row])) for row in np.flatnonzero(time).tolist()}
        lost = self.pool.begin(self._flat(self.running.episode), past)
        if lost:
            self.tell(
                f"{lost} of {self.pool.rows} environments did not come to where they were when played again; their "
                f"episodes end here, truncated. {self.env.id} does not repeat itself, so resuming it is not exact."
            )
        self.running.present[:] = self._pool("present")
        new = self.normaliser is not None and bool((self.normaliser.seen < 1).all())
        self.obs = self._seen(slice(None), np.full(self.shape, new))

    @property
    def normaliser(self) -> Normaliser | None:
        """A view of the running one, [S*N, ...]."""
        inner = self.running.normaliser
        return None if inner is None else Normaliser(*(self._flat(field) for field in inner))

    def rollout(
        self, act: Callable, policy: PyTree, hidden: np.ndarray, noise: np.ndarray
    ) -> tuple[np.ndarray, Rollout]:
        """As many steps as there is ``noise`` [S, T, N, ...]: the recurrent states [S, N, H] afterwards, and the
        Rollout, leaves [S, T, N, ...]. ``act`` is a compiled ``compiled.make_actor``."""
        steps, hidden = noise.shape[1], np.array(hidden)
        rows: dict[str, Any] = {}
        for t in range(steps + 1):
            for group, part in enumerate(self.groups):
                if t:
                    self._wait()
                    hidden[:, part] *= ~self._take(rows, part, t - 1, steps)[..., None]
                # After the last step only what the policy thinks of the last observation is wanted.
                drawn = noise[:, min(t, steps - 1), part]
                row, after = jax.device_get(act(policy, self.obs[:, part], hidden[:, part], drawn))
                row |= {"obs": self.obs[:, part], "hidden": hidden[:, part]}
                self._write(rows, row, part, t, steps)
                if t < steps:
                    hidden[:, part] = after
                    self._do(row["action"], part)
                    self.pool.step(group)
        self.played = {name: rows.pop(name) for name in ("episode", "lost")}
        step = Transition(**{name: rows.pop(name, None) for name in Transition._fields})
        return hidden, Rollout(**rows, step=step)

    def _do(self, action: np.ndarray, part: slice) -> None:
        """Hand a group its actions [S, G, ...], clipped, and note them down."""
        self._pool("action")[:, part] = taken = to_env(action, self.spec.action)
        seed, number = np.ogrid[: self.shape[0], part]
        self.running.actions[seed, number, self.running.time[:, part]] = taken
        self.running.time[:, part] += 1

    def _take(self, rows: dict[str, np.ndarray], part: slice, t: int, steps: int) -> np.ndarray:
        """Enter what a group's step brought; which episodes it ended, [S, G]."""
        names = [name for name in Transition._fields if name != "achieved" or self.spec.achievements]
        step = {name: self._pool(name)[:, part] for name in names}
        done = step["terminated"] | step["truncated"]
        step["next_obs"] = self._seen(part, np.ones_like(done), "next_obs")
        step |= {"episode": self.running.episode[:, part], "lost": self._pool("lost")[:, part]}
        self._write(rows, step, part, t, steps)
        self.obs[:, part] = self._seen(part, done)
        for name in ("episode", "present"):
            getattr(self.running, name)[:, part] = self._pool(name)[:, part]
        self.running.time[:, part] *= ~done
        return done

    def _seen(self, part: slice, new: np.ndarray, name: str = "obs") -> np.ndarray:
        """A group's observations [S, G, ...] as the policy is shown them; those that are ``new`` [S, G] are counted."""
        obs = self._pool(name)[:, part]
        if self.normaliser is None:
            return obs.copy()
        rows = np.arange(self.pool.rows).reshape(self.shape)[:, part]
        self.normaliser.enter(obs[new], rows[new])
        return self.normaliser(obs.reshape(rows.size, -1), rows.ravel()).reshape(obs.shape)

    def _write(self, rows: dict[str, np.ndarray], row: dict[str, np.ndarray], part: slice, t: int, steps: int) -> None:
        """Enter a group's row [S, G, ...] as step ``t`` of the rollout."""
        for name, values in row.items():
            length = steps + (name in LASTING)
            if name not in rows:
                rows[name] = np.empty((self.shape[0], length, self.shape[1], *values.shape[2:]), values.dtype)
            if t < length:
                rows[name][:, t, part] = values

    def _wait(self) -> None:
        began = time.perf_counter()
        self.pool.wait()
        self.waited += time.perf_counter() - began

    def _pool(self, name: str) -> np.ndarray:
        """A shared array as [S, N, ...]."""
        array: np.ndarray = getattr(self.pool.block, name)
        return array.reshape(*self.shape, *array.shape[1:])

    def _flat(self, array: np.ndarray) -> np.ndarray:
        """[S, N, ...] as [S*N, ...]."""
        return array.reshape(self.pool.rows, *array.shape[2:])


class HostTrainer:
    """What ``compiled.make_step`` is for environments on the device: the state after an iteration, and its metrics."""

    def __init__(self, experiment: Experiment, env: HostEnv, tell: Callable[[str], None] = print):
        self.experiment = experiment
        seeds = list(range(experiment.seed, experiment.seed + experiment.seeds))
        self.stage = HostCollector(env, seeds, experiment.num_envs, "train", tell)
        self.began = False

    def __call__(self, state: TrainState) -> tuple[TrainState, Metrics]:
        if not self.began:
            self.stage.begin(jax.device_get(state.envs))
            self.began = True
        experiment = self.experiment
        noise = np.asarray(compiled.make_noise(experiment)(state))
        hidden, rollout = self.stage.rollout(
            compiled.make_actor(experiment), state.learner.policy, jax.device_get(state.hidden), noise
        )
        running = jax.tree.map(np.copy, self.stage.running)  # learning reads it while the stage goes on
        return compiled.make_update(experiment)(state, running, hidden, rollout)


@contextmanager
def advancing(
    experiment: Experiment, tell: Callable[[str], None] = print
) -> Iterator[Callable[[TrainState], tuple[TrainState, Metrics]]]:
    """A function that does one iteration, wherever the environments live. It consumes its input."""
    env = experiment.env.host()
    if env is None:
        yield compiled.make_step(experiment)
        return
    driver = HostTrainer(experiment, env, tell)
    try:
        yield driver
    finally:
        driver.stage.pool.close()


# Playing without learning ----------------------------------------------------------------------------------------

CHUNK = 64
"""Steps between looks at whether every environment has played its share."""


class Played(NamedTuple):
    """One finished episode."""

    seed: int
    """what its environment was reset with, so that it can be played again"""
    actions: np.ndarray
    """[T] or [T, size], as the environment took them"""
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
    tell: Callable[[str], None] = print,
) -> list[Played]:
    """``episodes`` of the policy of the seed at ``index``, in fresh environments that share them out evenly.

    Where observations are normalised, these environments begin with what all of the training's saw together.
    """
    slots = min(episodes, experiment.num_envs)
    one: TrainState = jax.tree.map(lambda leaf: leaf[index : index + 1], state)
    act, draw = compiled.make_actor(experiment), compiled.make_play_noise(experiment, CHUNK, slots, greedy)
    hidden = np.zeros((1, slots, state.hidden.shape[-1]), np.float32)
    stage = HostCollector(env, [experiment.seed + index], slots, "play", tell)
    books = [EpisodeRecorder(env.spec, experiment.seed + index, slot) for slot in range(slots)]
    shares = [episodes // slots + (slot < episodes % slots) for slot in range(slots)]
    try:
        stage.begin(_fresh(env, slots, jax.device_get(one.envs)))
        for chunk in itertools.count():
            hidden, rollout = stage.rollout(act, one.learner.policy, hidden, np.asarray(draw(one.key, chunk)))
            for slot, book in enumerate(books):
                book.enter(*jax.tree.map(lambda leaf, n=slot: leaf[0, :, n], (rollout, stage.played)))
            if all(len(book.found) >= share for book, share in zip(books, shares, strict=True)):
                return [one for book, share in zip(books, shares, strict=True) for one in book.found[:share]]
    finally:
        stage.pool.close()
    raise AssertionError  # the count has no end


def _fresh(env: HostEnv, slots: int, trained: Running) -> Running:
    """[1, slots] environments at their first episodes."""
    running = env.begin(slots)
    if trained.normaliser is not None:
        running = running._replace(normaliser=Normaliser(*(f[0] for f in trained.normaliser)).pooled(slots))
    return jax.tree.map(lambda leaf: leaf[None], running)


class EpisodeRecorder:
    """Collects the finished episodes of one environment; those lost with a worker are left out."""

    def __init__(self, spec: EnvSpec, seed: int, slot: int):
        self.spec, self.name = spec, ("play", seed, slot)
        self.parts: list[dict[str, np.ndarray]] = []
        self.found: list[Played] = []

    def enter(self, rollout: Rollout, played: dict[str, np.ndarray]) -> None:
        """Some more steps, leaves [T, ...]."""
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
