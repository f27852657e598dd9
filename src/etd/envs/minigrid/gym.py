"""The Gymnasium interface: the compiled levels as ``gymnasium`` environments, single and vectorised.

Importing this module registers every level under ``etd/``::

    import gymnasium
    import etd.envs.minigrid.gym

    envs = gymnasium.make_vec("etd/MiniGrid-DoorKey-8x8-v0", num_envs=16)

Observations are MiniGrid's images only, as with its ImgObsWrapper.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from etd.core.keys import named
from etd.core.types import Array, Key, Transition
from etd.envs.minigrid.actions import ACTIONS
from etd.envs.minigrid.env import MiniGrid, make
from etd.envs.minigrid.table import IDS
from etd.envs.minigrid.world import World

try:
    import gymnasium
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError as error:
    raise ImportError("the Gymnasium interface needs gymnasium: pip install 'etd[minigrid]'") from error

POOL = 256
"""The minimum number of level starts generated at a time."""


class MiniGridEnv(gymnasium.Env[np.ndarray, np.int64]):
    """One level."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  (Gymnasium's own declaration)

    def __init__(
        self,
        name: str,
        view_size: int = 7,
        see_through_walls: bool | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.env = make(name, view_size, see_through_walls)
        self.render_mode = render_mode
        self.observation_space, self.action_space = _spaces(self.env)
        self.world: World | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        key = jax.random.key(int(self.np_random.integers(1 << 32)))
        self.world, obs = _reset(self.env)(key)
        return np.asarray(obs), {}

    def step(self, action: int | np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self.world is None:
            raise RuntimeError("step before reset: call reset() first")
        checked = _checked(np.asarray(action), ())
        self.world, step = _step(self.env)(self.world, checked)
        return np.asarray(step.next_obs), float(step.reward), bool(step.terminated), bool(step.truncated), {}

    def render(self) -> np.ndarray | None:
        if self.render_mode is None or self.world is None:
            return None
        return self.env.render(jax.device_get(self.world))


class MiniGridVectorEnv(VectorEnv):
    """A batch of environments of one level, stepped by one compiled call.

    Autoreset is next-step, Gymnasium's default: the call after an episode's end ignores that environment's action and
    returns the first observation of its next episode, with zero reward. New episodes start from a pool of levels
    generated in batches ahead of time.
    """

    metadata = {  # noqa: RUF012  (Gymnasium's own declaration)
        "render_modes": ["rgb_array"],
        "render_fps": 10,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        name: str,
        num_envs: int = 1,
        view_size: int = 7,
        see_through_walls: bool | None = None,
        render_mode: str | None = None,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, not {num_envs}")
        self.env = make(name, view_size, see_through_walls)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.single_observation_space, self.single_action_space = _spaces(self.env)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.world: World | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.key = jax.random.key(int(self.np_random.integers(1 << 32)))
        self.pools = 0
        self._fill()
        self.world, obs = _first(self.env, self.num_envs)(self.pool)
        self.used = self.num_envs
        self.ended = np.zeros(self.num_envs, bool)
        return np.asarray(obs), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        if self.world is None:
            raise RuntimeError("step before reset: call reset() first")
        checked = _checked(np.asarray(actions), (self.num_envs,))
        self.world, step = _advance(self.env)(self.world, checked, self.ended, self.pool, self._take())
        step = jax.device_get(step)
        self.ended = step.terminated | step.truncated
        return step.next_obs, step.reward.astype(np.float64), step.terminated, step.truncated, {}

    def render(self) -> tuple[np.ndarray, ...] | None:
        if self.render_mode is None or self.world is None:
            return None
        worlds = jax.device_get(self.world)
        return tuple(self.env.render(jax.tree.map(lambda leaf, b=b: leaf[b], worlds)) for b in range(self.num_envs))

    def _take(self) -> np.ndarray:
        """[num_envs] the pool's start that each finished environment takes; refills the pool if too few are left."""
        needed = int(self.ended.sum())
        if self.used + needed > self.pool_size:
            self._fill()
        index = np.where(self.ended, self.used + np.cumsum(self.ended) - 1, 0)
        self.used += needed
        return index.astype(np.int32)

    def _fill(self) -> None:
        """Generate a new pool; starts left over from the last one are dropped, so none is ever used twice."""
        self.pool_size = max(POOL, self.num_envs)
        self.pool = _starts(self.env, self.pool_size)(named(self.key, "pool", self.pools))
        self.pools += 1
        self.used = 0


def _spaces(env: MiniGrid) -> tuple[gymnasium.spaces.Box, gymnasium.spaces.Discrete]:
    image = gymnasium.spaces.Box(0, 255, env.spec.obs_shape, np.uint8)
    return image, gymnasium.spaces.Discrete(ACTIONS)


def _checked(actions: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """``actions`` as int32; a ValueError if they are invalid."""
    if actions.shape != shape:
        raise ValueError(f"expected actions of shape {shape}, got {actions.shape}")
    if not np.issubdtype(actions.dtype, np.integer):
        raise ValueError(f"actions are integers 0 .. {ACTIONS - 1}, got {actions.dtype}")
    if ((actions < 0) | (actions >= ACTIONS)).any():
        raise ValueError(f"actions are 0 .. {ACTIONS - 1}, got {actions.tolist()}")
    return actions.astype(np.int32)


@lru_cache(maxsize=64)
def _reset(env: MiniGrid) -> Any:
    return jax.jit(env.reset)


@lru_cache(maxsize=64)
def _step(env: MiniGrid) -> Any:
    return jax.jit(env.step)


@lru_cache(maxsize=64)
def _starts(env: MiniGrid, count: int) -> Any:
    def starts(key: Key) -> World:
        return jax.vmap(env.level.generate)(jax.random.split(key, count))

    return jax.jit(starts)


@lru_cache(maxsize=64)
def _first(env: MiniGrid, count: int) -> Any:
    """The first starts of a pool, with their observations."""

    def first(pool: World) -> tuple[World, Array]:
        world = jax.tree.map(lambda leaf: leaf[:count], pool)
        return world, jax.vmap(env.observe)(world)

    return jax.jit(first)


@lru_cache(maxsize=64)
def _advance(env: MiniGrid) -> Any:
    """A step of a batch; finished environments take their next start from the pool instead."""

    def advance(world: World, actions: Array, ended: Array, pool: World, index: Array) -> tuple[World, Transition]:
        count = ended.shape[0]
        stepped, step = jax.vmap(env.step)(world, actions)

        def choose(fresh: Array, old: Array) -> Array:
            return jnp.where(ended.reshape(count, *[1] * (old.ndim - 1)), fresh, old)

        fresh = jax.tree.map(lambda leaf: leaf[index], pool)
        first = jax.vmap(env.observe)(fresh)
        step = step._replace(
            next_obs=choose(first, step.next_obs),
            reward=jnp.where(ended, 0.0, step.reward),
            terminated=step.terminated & ~ended,
            truncated=step.truncated & ~ended,
        )
        return jax.tree.map(choose, fresh, stepped), step

    return jax.jit(advance)


def register() -> None:
    """Register every level with Gymnasium as ``etd/<its id>``; calling it again changes nothing."""
    for name in IDS:
        if f"etd/{name}" not in gymnasium.registry:
            gymnasium.register(
                f"etd/{name}",
                entry_point=f"{__name__}:MiniGridEnv",
                vector_entry_point=f"{__name__}:MiniGridVectorEnv",
                kwargs={"name": name},
            )


register()
