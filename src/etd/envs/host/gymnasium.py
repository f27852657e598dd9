"""Anything registered in Gymnasium: ``gymnasium:ID``, and ``gymnasium:MODULE:ID``, where importing MODULE registers it.

What can be put into the form that a pool of workers takes is: numbers of any kind become float32, actions that start
elsewhere than 0 or have a range for each coordinate are shifted and scaled. Other spaces are refused, and so is an
environment without a time limit, for an episodic memory must know how much it may have to hold.
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
    """``max_steps`` takes the place of the registered time limit; ``options`` are the environment's own."""
    headless()  # for those on MuJoCo
    id = name.removeprefix("gymnasium:")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on newer versions and missing render modes; what matters is said below
            env = gymnasium.make(id, max_steps, disable_env_checker=True, **_picture(id), **options)
    except (gymnasium.error.Error, ImportError) as error:
        hint = ""
        if isinstance(error, gymnasium.error.NameNotFound):
            hint = " If a module of yours registers it, name that, too: gymnasium:MODULE:ID."
        raise UserError(f"Gymnasium cannot make {id!r}: {str(error).rstrip('.?')}.{hint}") from error
    limit = max_steps or (env.spec and env.spec.max_episode_steps)
    if not limit:
        raise UserError(f"{name} has no time limit. Register it with max_episode_steps.")
    return Adapted(_acting(env), name, limit)


def adapted(name: str, factory: Factory) -> Adapted:
    """An environment of the user's own, made by its class or a function. Its time limit is that of a TimeLimit around
    it or its attribute ``max_steps``."""
    headless()
    kind: Any = factory.make
    draws = isinstance(kind, type) and "rgb_array" in (getattr(kind, "metadata", None) or {}).get("render_modes", ())
    asked = factory.accepts("render_mode") and "render_mode" not in dict(factory.options)
    # A function that takes a render mode knows which ones there are; a class declares them.
    env = factory(**({"render_mode": "rgb_array"} if asked and (draws or not isinstance(kind, type)) else {}))
    if not isinstance(env, gymnasium.Env):
        raise UserError(f"{name} made {type(env).__name__}, not a Gymnasium environment.")
    limit = _limit(env)
    if limit is None and isinstance(limit := getattr(env.unwrapped, "max_steps", None), int) and limit > 0:
        env = wrappers.TimeLimit(env, limit)
    if not limit:
        raise UserError(
            f"{name} has no time limit. Give it an attribute max_steps, or wrap it in gymnasium.wrappers.TimeLimit."
        )
    return Adapted(_acting(env), name, limit)


def _limit(env: gymnasium.Env) -> int | None:
    """Of the tightest TimeLimit around the environment."""
    found = []
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, wrappers.TimeLimit):
            found.append(env._max_episode_steps)
        env = env.env
    return min(found, default=None)


class Adapted(gymnasium.Wrapper, gymnasium.utils.RecordConstructorArgs):
    """An environment with the type of observation and the attributes that workers rely on."""

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
        if isinstance(acts, spaces.Box):  # what is within its bounds in float32 may not be in its own type
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
                f"{self.name} gave an observation of the shape {list(typed.shape)}; its space says "
                f"{list(self.observation_space.shape or ())}."
            )
        return typed


def _picture(id: str) -> dict[str, str]:
    """The render mode to ask for; where no pictures are declared there is none, and it may not be an argument."""
    module, colon, registered = id.rpartition(":")
    if colon:
        if not module:
            raise gymnasium.error.Error("Before a colon stands the module that registers it")
        plugins.recall_module(module, f"gymnasium:{id} is registered by {module}")
    if registered not in gymnasium.registry:
        registered = _newest(registered)
    entry = gymnasium.spec(registered).entry_point
    kind = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    modes = getattr(kind, "metadata", {}).get("render_modes", ())
    return {"render_mode": "rgb_array"} if "rgb_array" in modes else {}


def _newest(id: str) -> str:
    """Gymnasium makes the newest version of an id without one, but does not describe it."""
    versions = [spec for spec in gymnasium.registry.values() if spec.id == f"{id}-v{spec.version}"]
    return max(versions, key=lambda spec: spec.version or 0).id if versions else id


def _acting(env: gymnasium.Env) -> gymnasium.Env:
    """Actions from 0, or with one range for all coordinates."""
    acts = env.action_space
    if isinstance(acts, spaces.Discrete) and acts.start != 0:
        start = int(acts.start)
        return wrappers.TransformAction(env, lambda action: action + start, spaces.Discrete(int(acts.n)))
    if isinstance(acts, spaces.Box) and acts.is_bounded() and np.issubdtype(acts.dtype, np.floating):
        low, high = acts.low, acts.high
        if (low != low.flat[0]).any() or (high != high.flat[0]).any():
            return wrappers.RescaleAction(env, np.float32(-1.0), np.float32(1.0))
    return env
