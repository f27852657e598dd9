"""An experiment: everything that determines a run's numbers, in one frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from etd import bonuses
from etd.agent.ppo import PPO
from etd.bonuses import BONUSES, ETD, Bonus
from etd.core import plugins
from etd.core.limits import limited
from etd.envs import Task
from etd.training import summary
from etd.training.reward import Mix


@dataclass(frozen=True)
class Experiment:
    """The defaults are the paper's for DoorKey, MultiRoom and KeyCorridor. Parts may be names, classes or instances.

    >>> Experiment(env="MiniGrid-DoorKey-5x5-v0", bonus="count", steps=10_000).iterations
    2
    """

    env: Task = field(default_factory=Task)
    bonus: Bonus = field(default_factory=ETD)
    ppo: PPO = field(default_factory=PPO)
    mix: Mix = field(default_factory=Mix)
    steps: int = limited(500_000, above=0)
    """environment steps per seed, rounded up to whole iterations"""
    num_envs: int = limited(16, above=0, most=1e6)
    rollout_steps: int = limited(512, above=0, most=1e6)
    """steps of each environment per iteration"""
    seed: int = limited(0, least=0)
    """the first seed; the others follow"""
    seeds: int = limited(1, above=0, most=1e4)
    """independent agents, trained together as one batch"""
    precision: Literal["float32", "tensorfloat32", "bfloat16"] = "float32"
    """on a GPU, each faster than the one before: tensorfloat32 keeps 10 bits of mantissa in matrix products; bfloat16
    also keeps 7 in what convolutions read and write, and adds up in float32"""
    deterministic: bool = False
    """train to the same bits every time on a GPU, 6 to 18 % slower: kernels are not chosen by timing them. A CPU always
    does"""

    def __post_init__(self) -> None:
        """Resolve parts given by name or class, and an environment given as an object."""
        object.__setattr__(self, "env", Task.of(self.env))
        if isinstance(self.bonus, str):
            object.__setattr__(self, "bonus", bonuses.make(self.bonus))
        for name, slot, ours in (("bonus", Bonus, BONUSES), ("ppo", PPO, {"ppo": PPO}), ("mix", Mix, {"mix": Mix})):
            object.__setattr__(self, name, plugins.instance(slot, ours, getattr(self, name)))

    def __repr__(self) -> str:
        return summary.words(self)

    def _repr_html_(self) -> str:
        return summary.html(self)

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.rollout_steps

    @property
    def iterations(self) -> int:
        return -(-self.steps // self.steps_per_iteration)
