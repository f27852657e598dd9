"""Environments that run on the host: each is a single ``gymnasium.Env``, created by the module of its family.

All of them follow the same contract, so a pool of workers can step any of them:

- observations are an image, uint8 [H, W, 3], or a vector, float32 [n]; actions are Discrete from 0, or a Box whose
  entries share one finite range;
- ``terminated`` means that the task ended; the environment itself sets ``truncated`` after ``max_steps`` steps, an
  attribute;
- if termination with a positive reward is a success, the attribute ``can_succeed`` is true;
- ``render()`` returns an RGB picture without a display and never affects the episode; with vector observations, OpenGL
  is not initialised before the first picture.

A family's module (see ``envs.families``) and its packages are imported when one of its environments is created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from etd.core.errors import UserError
from etd.core.types import PIXELS, Box, Discrete, EnvSpec
from etd.envs import families

if TYPE_CHECKING:
    import gymnasium


def make(name: str, **options: Any) -> gymnasium.Env:
    """One environment; a UserError if it cannot be created."""
    family = families.get(name)
    if not family.on_host:
        raise UserError(f"{name} lives on the device, not on the host.")
    env = family.make(name, **options)
    spec_of(env, name)  # rejects unsupported spaces
    return env


def spec_of(env: gymnasium.Env, name: str) -> EnvSpec:
    """The spec of a host environment; a UserError for unsupported spaces."""
    from gymnasium import spaces

    seen, acts = env.observation_space, env.action_space
    image = isinstance(seen, spaces.Box) and seen.dtype == np.uint8 and len(seen.shape) == 3 and seen.shape[2] == 3
    if not (image or (isinstance(seen, spaces.Box) and seen.dtype == np.float32 and len(seen.shape) == 1)):
        raise UserError(
            f"{name} has observations {seen}; only images (uint8 [height, width, 3]) and vectors are supported. "
            "Wrap the environment to return one of these."
        )
    action: Discrete | Box
    if isinstance(acts, spaces.Discrete) and acts.start == 0:
        action = Discrete(int(acts.n))
    elif isinstance(acts, spaces.Box) and _one_range(acts):
        action = Box(acts.shape[0], float(acts.low[0]), float(acts.high[0]))
    else:
        raise UserError(
            f"{name} has actions {acts}; only Discrete actions and vectors (Box) with finite bounds are supported. "
            "Wrap the environment to accept one of these."
        )
    shape = tuple(seen.shape or ())
    small = image and min(shape[:2]) < PIXELS
    return EnvSpec(
        name=name,
        obs_shape=shape,
        obs_dtype=str(seen.dtype),
        obs_high=255.0 if image else 1.0,
        action=action,
        max_steps=int(env.get_wrapper_attr("max_steps")),
        shortest=1,
        kind="grid" if small else "pixels" if image else "vector",
        achievements=tuple(getattr(env, "achievements", ())),
        can_succeed=bool(getattr(env.unwrapped, "can_succeed", False)),
    )


def _one_range(acts: gymnasium.spaces.Box) -> bool:
    """Whether actions are real vectors whose entries all have the same finite bounds."""
    if not np.issubdtype(acts.dtype, np.floating) or len(acts.shape) != 1 or not acts.shape[0]:
        return False
    low, high = acts.low[0], acts.high[0]
    return bool(acts.is_bounded() and (acts.low == low).all() and (acts.high == high).all())
