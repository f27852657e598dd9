"""How the bonus is added to the environment's reward."""

from __future__ import annotations

from dataclasses import dataclass

from etd.core.limits import limited
from etd.core.moments import Moments
from etd.core.types import Array


@dataclass(frozen=True)
class Mix:
    """r = extrinsic r_env + intrinsic b', where b' is the bonus standardised by its decayed moments.

    >>> import jax.numpy as jnp
    >>> mix = Mix(intrinsic=0.0)
    >>> _, reward = mix(mix.init(), reward=jnp.ones((2, 3)), bonus=jnp.zeros((2, 3)))
    >>> reward.shape, float(reward.sum())
    ((2, 3), 6.0)
    """

    extrinsic: float = limited(1.0, least=0)
    intrinsic: float = limited(1e-2, least=0)
    """the paper's beta"""
    momentum: float = limited(0.9, least=0, below=1)
    standardise: bool = True

    def init(self) -> Moments:
        """The moments before the first rollout."""
        return Moments.start()

    def __call__(self, moments: Moments, reward: Array, bonus: Array) -> tuple[Moments, Array]:
        """([], [T, N], [T, N]) to the moments after this rollout and the mixed reward [T, N]."""
        moments = moments.update(bonus, self.momentum)
        scaled = moments.standardise(bonus) if self.standardise else bonus
        return moments, self.extrinsic * reward + self.intrinsic * scaled
