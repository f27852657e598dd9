"""Environments. A ``Task`` names or holds one and creates it; ``families`` lists the ones that come with etd."""

from etd.envs.families import FAMILIES, Family, ids, remedy
from etd.envs.task import Task

__all__ = ["FAMILIES", "Family", "Task", "ids", "remedy"]
