"""What the model of a bonus makes of observations: their embeddings, and how far apart it thinks they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from etd.bonuses import ETD, LearnedBonus
from etd.core.errors import UserError
from etd.core.types import Array
from etd.nets.model import Learner
from etd.training.compiled import Program
from etd.training.config import bonus_name
from etd.training.experiment import Experiment


class Insight:
    """Looks into the model of an experiment's bonus, at the experiment's precision."""

    def __init__(self, experiment: Experiment) -> None:
        self.bonus = bonus = experiment.bonus
        self._embed = Program(experiment, partial(_embedded, isinstance(bonus, ETD)))
        self._distance = Program(experiment, bonus.distance) if isinstance(bonus, ETD) else None

    def embed(self, learner: Any, obs: np.ndarray) -> np.ndarray:
        """The model's embedding of observations [B, ...]: [B, D]. ETD's is the one in which it measures distances."""
        if not isinstance(self.bonus, LearnedBonus) or not hasattr(learner.net(), "trunk"):
            raise UserError(f"The bonus {bonus_name(self.bonus)} has no embedding of single observations.")
        return np.asarray(self._embed(learner, jnp.asarray(obs)))

    def distance(self, embed: Callable[[Any], np.ndarray], x: Any, y: Any) -> np.ndarray:
        """How far ETD thinks it is from each of x to each of y: [A, B]; ``embed`` maps each to [A, D] and [B, D]."""
        if self._distance is None:
            raise UserError(f"The bonus {bonus_name(self.bonus)} learns no distance; only etd does.")
        return np.asarray(self._distance(jnp.asarray(embed(x)), jnp.asarray(embed(y))))


def _embedded(encoded: bool, learner: Learner, obs: Array) -> Array:
    net = learner.net()
    features = net.trunk(obs)
    return net.encode(features) if encoded else features
