"""Anything registered in Gymnasium: ``gymnasium:ID``, or ``gymnasium:MODULE:ID`` if importing MODULE registers it.

Spaces are adapted to the worker pool where possible: vectors of any number type become float32; actions that do not
start at 0 are shifted, and actions with a different range per entry are rescaled. Other spaces are rejected, and so is
an environment without a time limit, because it determines the size of the episodic memory.
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers

from etd.core import plugins
from etd.core.errors import UserError
from etd.envs import picture
from etd.envs.custom import Factory
from etd.envs.host import spec_of
from etd.envs.host.opengl import drawing, headless


def make(name: str, max_steps: int | None = None, **options: Any) -> Adapted:
    """``max_steps`` replaces the registered time limit; ``options`` are passed to the environment."""
    headless()  # for MuJoCo environments
    id = name.removeprefix("gymnasium:")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer versions, missing render modes; real errors are reported below
            env = gymnasium.make(id, max_steps, disable_env_checker=True, **_picture(id), **options)
    except (gymnasium.error.Error, ImportError) as error:
        hint = ""
        if isinstance(error, gymnasium.error.NameNotFound):
            hint = " If your own module registers it, name that, too: gymnasium:MODULE:ID."
        raise UserError(f"Gymnasium cannot create {id!r}: {str(error).rstrip('.?')}.{hint}") from error
    limit = max_steps or (env.spec and env.spec.max_episode_steps)
    if not limit:
        raise UserError(f"{name} has no time limit. Register it with max_episode_steps.")
    return Adapted(_acting(env), name, limit)


def adapted(name: str, factory: Factory) -> Adapted:
    """The user's own environment, created by its class or a function. Its time limit comes from a TimeLimit wrapper or
    from its attribute ``max_steps``."""
    headless()
    kind: Any = factory.make
    draws = isinstance(kind, type) and "rgb_array" in (getattr(kind, "metadata", None) or {}).get("render_modes", ())
    asked = factory.accepts("render_mode") and "render_mode" not in dict(factory.options)
    # A function that accepts a render mode can be given one; a class declares which ones it has.
    env = factory(**({"render_mode": "rgb_array"} if asked and (draws or not isinstance(kind, type)) else {}))
    if not isinstance(env, gymnasium.Env):
        raise UserError(f"{name} returned {type(env).__name__}, not a Gymnasium environment.")
    limit = _limit(env)
    if limit is None and isinstance(limit := getattr(env.unwrapped, "max_steps", None), int) and limit > 0:
        env = wrappers.TimeLimit(env, limit)
    if not limit:
        raise UserError(
            f"{name} has no time limit. Give it an attribute max_steps, or wrap it in gymnasium.wrappers.TimeLimit."
        )
    return Adapted(_acting(env), name, limit)


def _limit(env: gymnasium.Env) -> int | None:
    """The limit of the tightest TimeLimit wrapper."""
    found = []
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, wrappers.TimeLimit):
            found.append(env._max_episode_steps)
        env = env.env
    return min(found, default=None)


class Adapted(gymnasium.Wrapper, gymnasium.utils.RecordConstructorArgs):
    """An environment with the observation type and attributes that workers expect."""

    def __init__(self, env: gymnasium.Env, name: str, max_steps: int) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, name=name, max_steps=max_steps)
        gymnasium.Wrapper.__init__(self, env)
        self.name, self.max_steps = name, max_steps
        seen = env.observation_space
        if isinstance(seen, spaces.Box) and len(seen.shape) == 1:
            low, high = seen.low.astype(np.float32), seen.high.astype(np.float32)
            self.observation_space = spaces.Box(low, high, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        obs, info = self.env.reset(seed=seed, options=options)
        self.seen = self._typed(obs)
        return self.seen, info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        acts = self.action_space
        if isinstance(acts, spaces.Box):  # a float32 value within the bounds may exceed them in the space's own type
            action = np.clip(np.asarray(action, acts.dtype), acts.low, acts.high)
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.seen = self._typed(obs)
        return self.seen, float(reward), bool(terminated), bool(truncated), info

    def render(self) -> np.ndarray:
        if self.env.render_mode != "rgb_array":
            return picture.of_observation(spec_of(self, self.name), self.seen)
        with drawing(self.name):
            try:
                return np.asarray(self.env.render(), np.uint8)
            except gymnasium.error.DependencyNotInstalled as error:
                raise UserError(f"{self.name} cannot be drawn: {str(error).rstrip('.')}.") from error

    def _typed(self, obs: Any) -> np.ndarray:
        typed = np.asarray(obs, self.observation_space.dtype)
        if typed.shape != self.observation_space.shape:
            raise UserError(
                f"{self.name} returned an observation of shape {list(typed.shape)}; its space says "
                f"{list(self.observation_space.shape or ())}."
            )
        return typed


def _picture(id: str) -> dict[str, str]:
    """The render mode argument; empty if the class declares no pictures, since it may then not accept the argument."""
    module, colon, registered = id.rpartition(":")
    if colon:
        if not module:
            raise gymnasium.error.Error("The part before the colon must be the module that registers it")
        plugins.recall_module(module, f"gymnasium:{id} is registered by {module}")
    if registered not in gymnasium.registry:
        registered = _newest(registered)
    entry = gymnasium.spec(registered).entry_point
    kind = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    modes = getattr(kind, "metadata", {}).get("render_modes", ())
    return {"render_mode": "rgb_array"} if "rgb_array" in modes else {}


def _newest(id: str) -> str:
    """Gymnasium creates the newest version of an id without a version, but has no spec under that id."""
    versions = [spec for spec in gymnasium.registry.values() if spec.id == f"{id}-v{spec.version}"]
    return max(versions, key=lambda spec: spec.version or 0).id if versions else id


def _acting(env: gymnasium.Env) -> gymnasium.Env:
    """Wrap the environment to take actions from 0, or with one range for all entries."""
    acts = env.action_space
    if isinstance(acts, spaces.Discrete) and acts.start != 0:
        start = int(acts.start)
        return wrappers.TransformAction(env, lambda action: action + start, spaces.Discrete(int(acts.n)))
    if isinstance(acts, spaces.Box) and acts.is_bounded() and np.issubdtype(acts.dtype, np.floating):
        low, high = acts.low, acts.high
        if low.size and ((low != low.flat[0]).any() or (high != high.flat[0]).any()):
            return wrappers.RescaleAction(env, np.float32(-1.0), np.float32(1.0))
    return env
