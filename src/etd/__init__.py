"""Exploration by temporal distance: ETD and its baselines, trained end to end in JAX.

The whole public API is exported here. Names are imported on first use, so ``import etd`` is fast and
``import etd.bonuses`` loads only what bonuses need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from etd.core.version import __version__ as __version__

if TYPE_CHECKING:
    from etd.adapters.explorer import Explorer
    from etd.agent.ppo import PPO
    from etd.bonuses import BONUSES, ETD, Bonus, BonusState, LearnedBonus, NoBonus, Scored
    from etd.core.errors import UserError
    from etd.core.limits import limited
    from etd.core.types import Box, Discrete, EnvSpec, Rollout, Transition
    from etd.envs import Task
    from etd.envs.base import DeviceEnv
    from etd.lab.check import check
    from etd.lab.compare.compare import Comparison, compare
    from etd.lab.mazes.distance import Distances, distance
    from etd.lab.runs.agent import Agent
    from etd.lab.runs.evaluate import evaluate
    from etd.lab.runs.session import load, resume, train
    from etd.lab.runs.store import Run
    from etd.nets.cells import Cell
    from etd.nets.trunks import Trunk
    from etd.training.experiment import Experiment
    from etd.training.presets import PRESETS
    from etd.training.reward import Mix

_HOMES = {
    "Agent": "etd.lab.runs.agent",
    "BONUSES": "etd.bonuses",
    "Bonus": "etd.bonuses",
    "BonusState": "etd.bonuses",
    "Box": "etd.core.types",
    "Cell": "etd.nets.cells",
    "DeviceEnv": "etd.envs.base",
    "Discrete": "etd.core.types",
    "Distances": "etd.lab.mazes.distance",
    "ETD": "etd.bonuses",
    "EnvSpec": "etd.core.types",
    "Experiment": "etd.training.experiment",
    "Explorer": "etd.adapters.explorer",
    "LearnedBonus": "etd.bonuses",
    "Mix": "etd.training.reward",
    "NoBonus": "etd.bonuses",
    "PPO": "etd.agent.ppo",
    "PRESETS": "etd.training.presets",
    "Rollout": "etd.core.types",
    "Run": "etd.lab.runs.store",
    "Scored": "etd.bonuses",
    "Task": "etd.envs",
    "Transition": "etd.core.types",
    "Trunk": "etd.nets.trunks",
    "UserError": "etd.core.errors",
    "check": "etd.lab.check",
    "compare": "etd.lab.compare.compare",
    "Comparison": "etd.lab.compare.compare",
    "distance": "etd.lab.mazes.distance",
    "evaluate": "etd.lab.runs.evaluate",
    "limited": "etd.core.limits",
    "load": "etd.lab.runs.session",
    "resume": "etd.lab.runs.session",
    "train": "etd.lab.runs.session",
}

__all__ = [
    "BONUSES",
    "ETD",
    "PPO",
    "PRESETS",
    "Agent",
    "Bonus",
    "BonusState",
    "Box",
    "Cell",
    "Comparison",
    "DeviceEnv",
    "Discrete",
    "Distances",
    "EnvSpec",
    "Experiment",
    "Explorer",
    "LearnedBonus",
    "Mix",
    "NoBonus",
    "Rollout",
    "Run",
    "Scored",
    "Task",
    "Transition",
    "Trunk",
    "UserError",
    "check",
    "compare",
    "distance",
    "evaluate",
    "limited",
    "load",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'etd' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
