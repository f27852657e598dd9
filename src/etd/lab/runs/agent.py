"""A trained agent by itself: it acts in any loop, NumPy in, NumPy out.

agent = etd.load("runs/x").agent(seed=0)
obs, _ = env.reset()
memory = None                                   # a new episode
while ...:
    action, memory = agent.act(obs, memory)
    obs, reward, terminated, truncated, _ = env.step(action)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from etd.core.arrays import array
from etd.core.errors import UserError
from etd.core.types import Discrete
from etd.lab.runs import export
from etd.lab.runs.export import Weights
from etd.lab.runs.store import Run
from etd.training import compiled
from etd.training.collect import to_env
from etd.training.experiment import Experiment
from etd.training.inside import Insight
from etd.training.validate import check

IMAGE = "image"
"""The part that is seen of the observations of Farama's MiniGrid."""

_insight = lru_cache(maxsize=8)(Insight)
"""Agents of one experiment share their compiled programs, and so every bit."""


class Agent:
    """The policy of one seed, and the model of its bonus.

    Every method takes one observation [...] or a batch [B, ...], and returns as many. Those of Farama's MiniGrid may be
    passed as they are: of the dict, the image is used. Samples come from ``rng``, seeded with the agent's own seed;
    replace it for other ones.

    >>> import etd, numpy as np
    >>> run = etd.train("MiniGrid-Empty-5x5-v0", "count", steps=64, num_envs=4, rollout_steps=16,
    ...                 fields={"ppo.minibatch": 32, "ppo.epochs": 1}, out="runs/example", quiet=True)
    >>> agent = etd.load("runs/example").agent(seed=0)
    >>> obs, first = np.zeros((8, 7, 7, 3), np.uint8), np.arange(8) == 3
    >>> action, memory = agent.act(obs)
    >>> action.shape
    (8,)
    >>> memory[first] = 0  # where the next observation is an episode's first
    >>> action, memory = agent.act(obs, memory, greedy=True)
    """

    def __init__(self, experiment: Experiment, weights: Weights) -> None:
        """``experiment`` has one seed."""
        self.experiment, self.spec = experiment, experiment.env.spec
        self.rng = np.random.default_rng(experiment.seed)
        """draws the samples; ``agent.rng = np.random.default_rng(7)`` for others, or to repeat them"""
        self._weights, self._insight = weights, _insight(experiment)
        self._policy = jax.tree.map(lambda leaf: leaf[None], weights.policy)
        self._normaliser = None if weights.normaliser is None else jax.device_get(weights.normaliser).pooled(1)
        self._actor = compiled.make_actor(experiment)
        self._width = experiment.ppo.cell.width(experiment.ppo.features)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The agent that `etd export` wrote to a folder. It needs no run and no particular device."""
        run = Run.open(folder)
        if not run.exported:
            raise UserError(f"{run.path} is a run, not an exported agent. Use etd.load({str(folder)!r}).agent().")
        return cls(check(run.require()), export.read(run))

    def act(self, obs: Any, memory: np.ndarray | None = None, *, greedy: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Actions as the environment takes them, whole numbers or vectors, and the memory [H] or [B, H] to pass with
        the next observations.

        No ``memory`` means that episodes begin here. In a batch, set the rows of those that begin to zero. ``greedy``
        takes the most likely action instead of sampling.
        """
        seen, single = self._read(obs)
        row, after = self._look(seen, memory, single, greedy)
        action = to_env(row["action"], self.spec.action)
        return (action[0], after[0]) if single else (action, after)

    def value(self, obs: Any, memory: np.ndarray | None = None) -> np.ndarray:
        """The return, with its bonus, that the policy expects from here: [] or [B]."""
        seen, single = self._read(obs)
        value = self._look(seen, memory, single, greedy=True)[0]["value"]
        return value[0] if single else value

    def embed(self, obs: Any) -> np.ndarray:
        """The bonus's embedding of observations: [D] or [B, D]. ETD's is the one in which it measures distances."""
        seen, single = self._read(obs)
        embedded = self._embed(seen)
        return embedded[0] if single else embedded

    def distance(self, x: Any, y: Any) -> np.ndarray:
        """How far ETD thinks it is from each of x [A, ...] to each of y [B, ...]: [A, B], less the axis of what is a
        single observation."""
        (start, one), (end, other) = self._read(x), self._read(y)
        found = self._insight.distance(self._embed, start, end)
        found = found[0] if one else found
        return found[..., 0] if other else found

    def _embed(self, seen: np.ndarray) -> np.ndarray:
        return self._insight.embed(self._weights.bonus.learner, seen)

    def _look(
        self, seen: np.ndarray, memory: np.ndarray | None, single: bool, greedy: bool
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """What the policy says of observations [B, ...], and the memory [B, H] afterwards."""
        before = self._memory(memory, len(seen), single)
        given = [jnp.asarray(one[None]) for one in (seen, before, self._noise(len(seen), greedy))]
        row, after = self._actor(self._policy, *given)
        # A copy: rows of the memory are for the caller to change.
        return jax.tree.map(lambda leaf: np.asarray(leaf)[0], row), np.array(after[0])

    def _noise(self, count: int, greedy: bool) -> np.ndarray:
        """[B, ...] what the policy's sample takes; none of it for the most likely action."""
        space = self.spec.action
        shape = (count, space.n if isinstance(space, Discrete) else space.size)
        if greedy:
            return np.zeros(shape, np.float32)
        return (self.rng.gumbel if isinstance(space, Discrete) else self.rng.normal)(size=shape).astype(np.float32)

    def _memory(self, memory: Any, count: int, single: bool) -> np.ndarray:
        shape = (self._width,) if single else (count, self._width)
        if memory is None:
            return np.zeros((count, self._width), np.float32)
        given = array(memory, "memory")
        if given.shape != shape or not np.can_cast(given.dtype, np.float32, "same_kind"):
            raise UserError(
                f"memory is {given.dtype}{list(given.shape)}; with these observations it should be "
                f"float32{list(shape)}, as act() returned it, or None where episodes begin."
            )
        return given.astype(np.float32).reshape(count, self._width)

    def _read(self, obs: Any) -> tuple[np.ndarray, bool]:
        """Observations [B, ...] as the networks see them, and whether it was only one."""
        if isinstance(obs, Mapping):
            if IMAGE not in obs:
                raise UserError(f"obs is a dict without the part {IMAGE!r}. Pass what the agent saw in training.")
            obs = obs[IMAGE]
        given, shape, dtype = array(obs, "obs"), self.spec.obs_shape, np.dtype(self.spec.obs_dtype)
        single = given.shape == shape
        if not single and (given.shape[1:] != shape or not len(given)):
            raise UserError(
                f"obs has the shape {list(given.shape)}; {self.spec.name} has observations {list(shape)}, or "
                f"{['B', *shape]} for a batch.".replace("'", "")
            )
        if not np.can_cast(given.dtype, dtype, "same_kind"):
            raise UserError(f"obs has the type {given.dtype}; {self.spec.name} has observations of {dtype}.")
        if not np.isfinite(given).all():
            raise UserError("obs has values that are not finite. Find out where the environment makes them.")
        seen = (given[None] if single else given).astype(dtype)
        if self._normaliser is not None:
            seen = self._normaliser(seen)
        return seen, single
