"""Environments that run on the host: each is a plain single ``gymnasium.Env``, made by the builder file of its suite.

What every one of them keeps to, so that a pool of workers can step any of them:

- observations are an image, uint8 [H, W, 3], or a vector, float32 [n]; actions are Discrete from 0, or a Box whose
  coordinates share one finite range;
- ``terminated`` is the task's end alone; the environment itself says ``truncated`` after ``max_steps`` steps, an
  attribute;
- where an episode that the task ends with a reward is a success, an attribute ``can_succeed`` is true;
- ``render()`` gives an RGB picture without a display; where observations are vectors, nothing of OpenGL is set up
  before the first picture. It never changes what happens next.

The file of a family (``envs.families``) is imported, packages and all, when one of its environments is made.
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
    """One environment, or a sentence on why there is none."""
    family = families.get(name)
    if not family.on_host:
        raise UserError(f"{name} lives on the device, not on the host.")
    env = family.make(name, **options)
    spec_of(env, name)  # refuses what cannot be learnt in
    return env


def spec_of(env: gymnasium.Env, name: str) -> EnvSpec:
    """What networks and bonuses may know of a host environment; spaces they cannot serve are refused."""
    from gymnasium import spaces

    seen, acts = env.observation_space, env.action_space
    image = isinstance(seen, spaces.Box) and seen.dtype == np.uint8 and len(seen.shape) == 3 and seen.shape[2] == 3
    if not (image or (isinstance(seen, spaces.Box) and seen.dtype == np.float32 and len(seen.shape) == 1)):
        raise UserError(
            f"{name} is observed in {seen}; only images (uint8 [height, width, 3]) and vectors can be learnt from. "
            "Wrap it so that it gives one of these."
        )
    action: Discrete | Box
    if isinstance(acts, spaces.Discrete) and acts.start == 0:
        action = Discrete(int(acts.n))
    elif isinstance(acts, spaces.Box) and _one_range(acts):
        action = Box(acts.shape[0], float(acts.low[0]), float(acts.high[0]))
    else:
        raise UserError(
            f"{name} acts in {acts}; only Discrete actions and vectors (Box) with finite bounds can be learnt. "
            "Wrap it so that it takes one of these."
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
    """Whether actions are real vectors whose coordinates have the same finite bounds."""
    if not np.issubdtype(acts.dtype, np.floating) or len(acts.shape) != 1 or not acts.shape[0]:
        return False
    low, high = acts.low[0], acts.high[0]
    return bool(acts.is_bounded() and (acts.low == low).all() and (acts.high == high).all())
