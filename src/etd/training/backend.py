"""Training on the device, where environments are compiled with the rest, or on the host, where they run in worker
processes. Only this file needs to know which.

    with backend.open(experiment) as agents:
        state = agents.start()
        state, metrics = agents.advance(state)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from etd.core.errors import UserError
from etd.core.keys import named
from etd.core.types import EnvSpec, Metrics, PyTree, Rollout
from etd.envs import picture
from etd.envs.host.env import HostEnv
from etd.envs.noise import Noisy
from etd.training import compiled, host_play, spec_check
from etd.training.collect import to_env
from etd.training.compiled import Program
from etd.training.evaluate import Outcome, replay
from etd.training.experiment import Experiment
from etd.training.host_collect import HostCollector
from etd.training.learn import TrainState

_replay = jax.jit(replay, static_argnums=0)


@dataclass(frozen=True)
class Episode:
    """One episode for display, in NumPy."""

    actions: np.ndarray
    """[T] or [T, size], as passed to the environment"""
    rewards: np.ndarray
    """[T]"""
    bonus: np.ndarray
    """[T] raw bonus of each step"""
    success: bool
    pictures: dict[int, np.ndarray]
    """[height, width, 3] uint8 by number of steps taken"""
    states: PyTree | None
    """[T+1, ...] environment states; None on the host"""

    def __len__(self) -> int:
        return len(self.rewards)


class Backend(ABC):
    """The agents of an experiment, all seeds together, in their environments. Leaving its context stops its processes;
    they restart when needed."""

    def __init__(self, experiment: Experiment, spec: EnvSpec, init: Program) -> None:
        self.experiment, self.spec, self._init = experiment, spec, init

    def start(self) -> TrainState:
        """The first state of all seeds, leaves [S, ...]."""
        return self._init()

    def shapes(self) -> TrainState:
        """Shapes and types of the whole training state, without computing anything."""
        return self._init.shapes()

    @abstractmethod
    def advance(self, state: TrainState) -> tuple[TrainState, Metrics]:
        """The state after one iteration, and its metrics [S]; may return before they are computed. Consumes its input,
        unless it raises a UserError: then nothing was learned, and the state is intact."""

    @abstractmethod
    def collect(self, state: TrainState) -> tuple[TrainState, Rollout]:
        """Act for one rollout without learning: the new state, and the rollout [S, T, N, ...]."""

    @abstractmethod
    def evaluate(self, state: TrainState, index: int, episodes: int, greedy: bool = False) -> Outcome:
        """The outcome of ``episodes`` fresh episodes of the seed at ``index``, in NumPy. ``greedy`` takes the most
        likely action instead of sampling."""

    @abstractmethod
    def film(
        self, state: TrainState, index: int, episodes: int, greedy: bool, shown: Callable[[int], Collection[int]]
    ) -> Episode:
        """The first success among ``episodes`` fresh episodes of the seed at ``index``, or else the one with the
        highest return. ``shown`` maps its length to the steps to draw: all of a long episode would fill the memory."""

    def read(self, metrics: Metrics) -> dict[str, np.ndarray]:
        """An iteration's metrics [S] in NumPy; waits until they are computed. A UserError if the environment violated
        its spec: then the iteration should be discarded."""
        return spec_check.check(self.spec, jax.device_get(metrics))

    @abstractmethod
    def close(self) -> None:
        """Stop any other processes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open(experiment: Experiment, say: Callable[[str], None] = print) -> Backend:
    """The backend for this experiment's environments. ``say`` receives warnings for the user."""
    env = experiment.env.host()
    return DeviceBackend(experiment) if env is None else HostBackend(experiment, env, say)


def shapes(experiment: Experiment) -> PyTree:
    """Shapes and types of the whole training state, without computing anything."""
    return open(experiment).shapes()


class DeviceBackend(Backend):
    """An iteration is one compiled program, environments included."""

    def __init__(self, experiment: Experiment) -> None:
        self.env = experiment.env.make()
        super().__init__(experiment, self.env.spec, compiled.make_init(experiment))
        self._step = compiled.make_step(experiment)

    def advance(self, state: TrainState) -> tuple[TrainState, Metrics]:
        return self._step(state)

    def collect(self, state: TrainState) -> tuple[TrainState, Rollout]:
        return compiled.make_collector(self.experiment)(state)

    def evaluate(self, state: TrainState, index: int, episodes: int, greedy: bool = False) -> Outcome:
        play = compiled.make_evaluator(self.experiment, episodes, greedy)
        went: Outcome = jax.device_get(play(state, index, named(state.key[index], "evaluate")))
        if (longest := int(went.length.max())) > self.spec.max_steps:
            raise spec_check.too_long(self.spec, longest)
        return went

    def film(
        self, state: TrainState, index: int, episodes: int, greedy: bool, shown: Callable[[int], Collection[int]]
    ) -> Episode:
        played = compiled.make_player(self.experiment, episodes, greedy)(state, index, named(state.key[index], "film"))
        best = _worth_showing(played.outcome)
        length = int(played.outcome.length[best])

        def mine(tree: PyTree) -> Any:
            """The chosen episode's rows of leaves [max_steps, E, ...]."""
            return jax.tree.map(lambda leaf: leaf[:length, best], tree)

        actions = to_env(mine(played.rollout.action), self.spec.action)
        start = jax.tree.map(lambda leaf: leaf[best], played.start)
        states = jax.device_get(_replay(self.env, start, actions, mine(played.keys)))
        seen = np.concatenate([played.rollout.obs[:1, best], mine(played.rollout.next_obs)])
        return Episode(
            np.asarray(actions),
            np.asarray(mine(played.rollout.step.reward)),
            np.asarray(mine(played.bonus)),
            bool(played.outcome.success[best]),
            {
                time: self._picture(jax.tree.map(lambda leaf, t=time: leaf[t], states), seen[time])
                for time in shown(length)
            },
            states,
        )

    def _picture(self, state: PyTree, obs: np.ndarray) -> np.ndarray:
        """The environment's own rendering, or else a picture of the observation."""
        inner = self.env.env if isinstance(self.env, Noisy) else self.env
        render = getattr(inner, "render", None)
        if render is None:
            return picture.of_observation(self.spec, obs)
        drawn = np.asarray(render(state))
        if drawn.ndim != 3 or drawn.shape[2] != 3 or drawn.dtype != np.uint8:
            raise UserError(
                f"{self.spec.name}.render gave {drawn.dtype}{list(drawn.shape)}; it must give uint8[height, width, 3]."
            )
        return drawn

    def close(self) -> None:
        """There are none."""


class HostBackend(Backend):
    """Acting is a Python loop over environments in worker processes; learning is the same compiled function."""

    def __init__(self, experiment: Experiment, env: HostEnv, say: Callable[[str], None] = print) -> None:
        super().__init__(experiment, env.spec, compiled.make_host_init(experiment, env))
        self.env, self.say = env, say
        self.collector: HostCollector | None = None
        """created at the first iteration, from the environments in its state"""
        self._noise = compiled.make_noise(experiment)
        self._act, self._update = compiled.make_actor(experiment), compiled.make_update(experiment)

    def advance(self, state: TrainState) -> tuple[TrainState, Metrics]:
        return self._update(state, *self._rollout(state))

    def collect(self, state: TrainState) -> tuple[TrainState, Rollout]:
        running, hidden, rollout = self._rollout(state)
        after = state._replace(envs=running, hidden=jnp.asarray(hidden), iteration=state.iteration + 1)
        return after, rollout

    def _rollout(self, state: TrainState) -> tuple[PyTree, np.ndarray, Rollout]:
        """The running environments and recurrent states after acting, and the rollout."""
        collector = self.collector = self.collector or self._collector(state)
        noise, hidden = np.asarray(self._noise(state)), jax.device_get(state.hidden)
        try:
            hidden, rollout = collector.rollout(self._act, state.learner.policy, hidden, noise)
        except BaseException:
            self.close()  # its environments no longer match the state
            raise
        running = jax.tree.map(np.copy, collector.running)  # learning reads it while the collector continues
        return running, hidden, rollout

    def _collector(self, state: TrainState) -> HostCollector:
        seeds = [self.experiment.seed + index for index in range(self.experiment.seeds)]
        return HostCollector(self.env, seeds, "train", jax.device_get(state.envs), self.say)

    def evaluate(self, state: TrainState, index: int, episodes: int, greedy: bool = False) -> Outcome:
        return _outcome(host_play.play(self.experiment, self.env, state, index, episodes, greedy, self.say))

    def film(
        self, state: TrainState, index: int, episodes: int, greedy: bool, shown: Callable[[int], Collection[int]]
    ) -> Episode:
        played = host_play.play(self.experiment, self.env, state, index, episodes, greedy, self.say)
        best = played[_worth_showing(_outcome(played))]
        normaliser = jax.device_get(jax.tree.map(lambda leaf: leaf[index], state.envs.normaliser))
        pictures, obs, step = host_play.replay(self.env, best, normaliser, shown(len(best.actions)), self.say)
        score = compiled.make_episode_scorer(self.experiment)
        bonus = np.asarray(score(state, index, jnp.asarray(obs), jnp.asarray(best.actions), step))
        return Episode(best.actions, best.rewards, bonus, best.success, pictures, None)

    @property
    def waited(self) -> float:
        """Seconds training has waited for environments since they were started."""
        return 0.0 if self.collector is None else self.collector.waited

    def close(self) -> None:
        if self.collector is not None:
            self.collector.close()
            self.collector = None


def _outcome(played: list[host_play.Played]) -> Outcome:
    columns: Any = (
        np.array([len(one.rewards) for one in played]),
        np.array([one.rewards.sum() for one in played]),
        np.array([one.success for one in played]),
        np.array([one.achieved for one in played]) if played[0].achieved.size else None,
    )
    return Outcome(*columns)


def _worth_showing(went: Outcome) -> int:
    """The first success, or else the first with the highest return."""
    success = np.asarray(went.success)
    return int(success.argmax()) if success.any() else int(np.asarray(went.total).argmax())
