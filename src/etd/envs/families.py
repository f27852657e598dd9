"""Families of environments: one record each with everything that differs between them.

What an id is called, which presets it takes, what has to be installed, how fast it can be and how its actions read in a
film stands here and nowhere else. An environment of the user's own belongs to no family; see ``envs.custom``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from etd.core.errors import UserError, unknown
from etd.envs import craftax, maze, minigrid


@dataclass(frozen=True)
class Family:
    """Environments that are made, presented and measured alike."""

    name: str
    module: str
    """Its function ``make(id, ...)`` makes one; the module is imported when one is made."""
    ids: tuple[str, ...]
    """all there are, or some to show where a prefix opens more"""
    on_host: bool = False
    """stepped by worker processes, not compiled with the training"""
    presets: str = ""
    """the group of presets it takes; empty: the one for what is observed"""
    extra: str = ""
    """of etd, which installs what it needs"""
    packages: tuple[str, ...] = ()
    """what it needs"""
    prefix: str = ""
    """opens further ids"""
    more: str = ""
    """which, in words"""
    actions: tuple[str, ...] = ()
    """names of its actions"""
    title: str = ""
    """left out of an id where space is short"""
    normalise: bool = False
    """whether the authors' code standardises its observations"""
    rates: Mapping[str, float] = field(default_factory=dict, hash=False)
    """steps per second it allows: on a "cpu" or "gpu", or per "worker"; none where the learner is slower"""

    def has(self, name: str) -> bool:
        return name in self.ids or bool(self.prefix and name.startswith(self.prefix))

    def missing(self) -> tuple[str, ...]:
        """The packages that are not installed; nothing is imported to find out."""
        return tuple(package for package in self.packages if find_spec(package) is None)

    def make(self, name: str, **options: Any) -> Any:
        """One environment, or a sentence on what has to be installed."""
        if lacking := self.missing():
            raise UserError(f"{name} needs {lacking[0]}, which is not installed: pip install 'etd[{self.extra}]'")
        try:
            module = import_module(self.module)
        except ImportError as error:
            raise UserError(f"{name} needs a package that fails ({error}): pip install 'etd[{self.extra}]'") from error
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
        more="an id of gymnax, such as gymnax:MountainCar-v0",
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
        prefix="metaworld:",
        more="a task of Meta-World, without its -v3",
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
        more="an id of Gymnasium, or MODULE:ID",
    ),
)


def find(name: str) -> Family | None:
    """The family that an id belongs to, by its form alone."""
    return next((family for family in FAMILIES if family.has(name)), None)


def get(name: str) -> Family:
    """The same, or a sentence."""
    family = find(name)
    if family is None:
        raise unknown("environment", name, ids(), "See `etd list environments`; one of your own is module:Class.")
    return family


def ids() -> list[str]:
    """Every environment that can be named; a family with a prefix has more than are listed."""
    return [name for family in FAMILIES for name in family.ids]


def missing_extra(name: str) -> str:
    """The extra that has to be installed before this environment can be made; empty if none."""
    family = find(name)
    return family.extra if family and family.missing() else ""


def title(name: str) -> str:
    """An id, short for a table's narrow column; an environment of the user's own, without its module."""
    family = find(name)
    return name.removeprefix(family.title) if family else name.rpartition(":")[2]


def registering_module(name: str) -> str:
    """MODULE of gymnasium:MODULE:ID, which registers the environment; empty for any other id."""
    kind, _, rest = name.partition(":")
    return rest.rpartition(":")[0] if kind == "gymnasium" else ""
