"""Families of environments: one record each, with everything that differs between them.

Ids, presets, required packages, speed and the action names shown in films are all defined here. A user's own
environment belongs to no family; see ``envs.custom``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from etd.core.errors import UserError, unknown
from etd.envs import craftax, maze, maze3d, minigrid


@dataclass(frozen=True)
class Family:
    """Environments that are created, shown and benchmarked alike."""

    name: str
    module: str
    """Its function ``make(id, ...)`` creates an environment; the module is imported on first use."""
    ids: tuple[str, ...]
    """every id, or examples if a prefix allows more"""
    on_host: bool = False
    """stepped by worker processes, not compiled with training"""
    presets: str = ""
    """its group of presets; empty: chosen by the kind of observation"""
    extra: str = ""
    """the extra of etd that installs its packages"""
    packages: tuple[str, ...] = ()
    """packages it needs"""
    last_python: tuple[int, int] = (sys.maxsize, 0)
    """the newest Python that they can be installed on, as the extra in pyproject.toml says"""
    prefix: str = ""
    """ids that start with it belong to this family, too"""
    more: str = ""
    """what may follow the prefix, in words"""
    actions: tuple[str, ...] = ()
    """names of its actions"""
    title: str = ""
    """prefix dropped from ids where space is short"""
    normalise: bool = False
    """whether the authors' code standardises its observations"""
    rates: Mapping[str, float] = field(default_factory=dict, hash=False)
    """maximum steps per second on a "cpu" or "gpu", or per "worker"; empty where the learner is the bottleneck"""

    def has(self, name: str) -> bool:
        return name in self.ids or bool(self.prefix and name.startswith(self.prefix))

    def missing(self) -> tuple[str, ...]:
        """The packages that are not installed, found without importing anything."""
        return tuple(package for package in self.packages if find_spec(package) is None)

    def remedy(self) -> str:
        """What to do about a package that is missing; empty if none is."""
        if not self.missing():
            return ""
        return f"use Python {_dotted(self.last_python)}" if self._too_new() else f"pip install 'etd[{self.extra}]'"

    def absence(self) -> str:
        """What it lacks here and what to do about it, as in "needs crafter, which ..."; empty if nothing."""
        if not (lacking := self.missing()):
            return ""
        here = _dotted(sys.version_info[:2])
        why = f"cannot be installed on Python {here}" if self._too_new() else "is not installed"
        return f"needs {lacking[0]}, which {why}: {self.remedy()}"

    def _too_new(self) -> bool:
        return sys.version_info[:2] > self.last_python

    def make(self, name: str, **options: Any) -> Any:
        """One environment; a UserError if a package is missing."""
        if absence := self.absence():
            raise UserError(f"{name} {absence}")
        try:
            module = import_module(self.module)
        except ImportError as error:
            raise UserError(f"{name} failed to import ({error}): pip install 'etd[{self.extra}]'") from error
        return module.make(name, **options)


_MOVES = ("turn left", "turn right", "forward", "pick up", "drop", "toggle", "done")
_OBSTRUCTED = tuple(name for name in minigrid.IDS if "ObstructedMaze" in name)

FAMILIES = (
    Family(
        "minigrid",
        "etd.envs.minigrid",
        tuple(name for name in minigrid.IDS if name not in _OBSTRUCTED),
        presets="minigrid",
        actions=_MOVES,
        title="MiniGrid-",
    ),
    Family(
        "obstructedmaze",
        "etd.envs.minigrid",
        _OBSTRUCTED,
        presets="obstructedmaze",
        actions=_MOVES,
        title="MiniGrid-",
    ),
    Family("maze", "etd.envs.maze", maze.IDS, presets="minigrid", actions=("up", "down", "left", "right")),
    Family(
        "maze3d",
        "etd.envs.maze3d",
        maze3d.IDS,
        presets="miniworld",
        prefix=maze3d.PREFIX,
        more="N-v0: MiniWorld's maze of N x N rooms, drawn on the device",
        actions=_MOVES[:3],
    ),
    Family(
        "craftax",
        "etd.envs.craftax",
        craftax.IDS,
        presets="crafter",
        extra="craftax",
        packages=("craftax",),
        rates={"cpu": 300.0, "gpu": 7_000.0},
    ),
    Family(
        "gymnax",
        "etd.envs.gymnax",
        (),
        extra="gymnax",
        packages=("gymnax",),
        prefix="gymnax:",
        more="a gymnax id, such as gymnax:MountainCar-v0",
    ),
    Family(
        "crafter",
        "etd.envs.host.crafter",
        ("Crafter-v0", "Crafter-NoLife-v0"),
        on_host=True,
        presets="crafter",
        extra="crafter",
        packages=("crafter", "gymnasium"),
        rates={"worker": 700.0},
    ),
    Family(
        "miniworld",
        "etd.envs.host.miniworld",
        tuple(f"MiniWorld-MazeS{size}-v0" for size in (3, 4, 5)),
        on_host=True,
        presets="miniworld",
        extra="miniworld",
        packages=("miniworld", "gymnasium"),
        rates={"worker": 1_000.0},
    ),
    Family(
        "dmc",
        "etd.envs.host.dmc",
        ("dmc:acrobot-swingup_sparse", "dmc:hopper-hop", "dmc:cartpole-swingup_sparse"),
        on_host=True,
        presets="control",
        extra="dmc",
        packages=("dm_control", "gymnasium"),
        last_python=(3, 12),
        prefix="dmc:",
        more="DOMAIN-TASK of the DeepMind Control suite",
        rates={"worker": 6_500.0},
    ),
    Family(
        "metaworld",
        "etd.envs.host.metaworld",
        ("metaworld:reach", "metaworld:hammer", "metaworld:button-press"),
        on_host=True,
        presets="control",
        extra="metaworld",
        packages=("metaworld", "gymnasium"),
        last_python=(3, 13),
        prefix="metaworld:",
        more="a Meta-World task, without its -v3",
        rates={"worker": 2_300.0},
    ),
    Family(
        "mujoco",
        "etd.envs.host.mujoco",
        ("HalfCheetahVelSparse-v0",),
        on_host=True,
        presets="control",
        extra="mujoco",
        packages=("mujoco", "gymnasium"),
        normalise=True,
        rates={"worker": 11_000.0},
    ),
    Family(
        "gymnasium",
        "etd.envs.host.gymnasium",
        (),
        on_host=True,
        extra="gymnasium",
        packages=("gymnasium",),
        prefix="gymnasium:",
        more="a Gymnasium id, or MODULE:ID",
    ),
)


def find(name: str) -> Family | None:
    """The family an id belongs to, judged by the id alone."""
    return next((family for family in FAMILIES if family.has(name)), None)


def get(name: str) -> Family:
    """The same, or a UserError if there is none."""
    family = find(name)
    if family is None:
        raise unknown("environment", name, ids(), "See `etd list environments`; name your own as module:Class.")
    return family


def ids() -> list[str]:
    """Every listed environment; a family with a prefix has more."""
    return [name for family in FAMILIES for name in family.ids]


def remedy(name: str) -> str:
    """What to do before this environment can be created; empty if nothing."""
    family = find(name)
    return family.remedy() if family else ""


def title(name: str) -> str:
    """An id shortened for narrow table columns; a user's own environment without its module."""
    family = find(name)
    return name.removeprefix(family.title) if family else name.rpartition(":")[2]


def registering_module(name: str) -> str:
    """MODULE of gymnasium:MODULE:ID, which registers the environment; empty for any other id."""
    kind, _, rest = name.partition(":")
    return rest.rpartition(":")[0] if kind == "gymnasium" else ""


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
