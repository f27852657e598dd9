"""Exploration by temporal distance: ETD and its rivals, trained end to end in JAX."""

__version__ = "0.1.0"

from etd.agent.ppo import PPO
from etd.bonuses import BONUSES, ETD, Bonus, LearnedBonus, NoBonus
from etd.core.errors import UserError
from etd.envs import Task
from etd.lab.compare.compare import Comparison, compare
from etd.lab.mazes.distance import Distances, distance
from etd.lab.runs.session import load, resume, train
from etd.lab.runs.store import Run
from etd.train.experiment import Experiment
from etd.train.presets import PRESETS
from etd.train.reward import Mix

__all__ = [
    "BONUSES",
    "ETD",
    "PPO",
    "PRESETS",
    "Bonus",
    "Comparison",
    "Distances",
    "Experiment",
    "LearnedBonus",
    "Mix",
    "NoBonus",
    "Run",
    "Task",
    "UserError",
    "compare",
    "distance",
    "load",
    "resume",
    "train",
]
