"""What the model of a bonus makes of observations: their embeddings, and how far apart it thinks they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from etd.bonuses import ETD, Bonus, LearnedBonus
from etd.core.errors import UserError
from etd.core.types import Array
from etd.lab.runs.config import bonus_name
from etd.nets.model import Learner


def embed(bonus: Bonus, learner: Any, obs: np.ndarray) -> np.ndarray:
    """The model's embedding of observations [B, ...]: [B, D]. ETD's is the one in which it measures distances."""
    if not isinstance(bonus, LearnedBonus) or not hasattr(learner.net(), "trunk"):
        raise UserError(f"The bonus {bonus_name(bonus)} has no embedding of single observations.")
    return np.asarray(_embedded(isinstance(bonus, ETD), learner, jnp.asarray(obs)))


def distance(bonus: Bonus, embed: Callable[[Any], np.ndarray], x: Any, y: Any) -> np.ndarray:
    """How far ETD thinks it is from each of x to each of y: [A, B]; ``embed`` maps each to [A, D] and [B, D]."""
    if not isinstance(bonus, ETD):
        raise UserError(f"The bonus {bonus_name(bonus)} learns no distance; only etd does.")
    return np.asarray(_distance(bonus, jnp.asarray(embed(x)), jnp.asarray(embed(y))))


@partial(jax.jit, static_argnums=0)
def _distance(bonus: ETD, x: Array, y: Array) -> Array:
    return bonus.distance(x, y)


@partial(jax.jit, static_argnums=0)
def _embedded(encoded: bool, learner: Learner, obs: Array) -> Array:
    net = learner.net()
    features = net.trunk(obs)
    return net.encode(features) if encoded else features
