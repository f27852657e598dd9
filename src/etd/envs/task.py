"""Which environment to train in, and how it is observed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from etd.core import plugins
from etd.core.errors import UserError
from etd.core.limits import limited
from etd.core.types import EnvSpec
from etd.envs import custom, families
from etd.envs.base import DeviceEnv
from etd.envs.custom import Factory
from etd.envs.families import Family
from etd.envs.host.env import HostEnv
from etd.envs.noise import Noisy


@dataclass(frozen=True)
class Task:
    """An environment by name or as an object, and how it is observed.

    A device environment is compiled with the rest of training; a host environment is stepped by worker processes.

    >>> Task("MiniGrid-DoorKey-8x8-v0").spec.obs_shape
    (7, 7, 3)
    """

    id: str = "MiniGrid-DoorKey-8x8-v0"
    """an id from `etd list environments`, or the name of ``custom``"""
    custom: Any = None
    """your own environment: a DeviceEnv, or a Factory of Gymnasium environments"""
    view_size: int = 7
    """side of the square the agent sees (MiniGrid)"""
    see_through_walls: bool | None = None
    """None keeps MiniGrid's default for the level"""
    noise: float = limited(0.0, least=0)
    """standard deviation of Gaussian noise on observations; 0.1 in the authors' code, variance 0.1 in the paper"""
    normalise: bool = False
    """standardise vector observations of a host environment by a running mean and variance"""

    def __post_init__(self) -> None:
        if not isinstance(self.id, str):
            raise UserError(f"{self.id!r} is not the id of an environment. See `etd list environments`.")

    @classmethod
    def of(cls, thing: Any) -> Task:
        """A task from an id, ``module:Class`` or an environment; a task is returned as is."""
        if isinstance(thing, Task | plugins.Unavailable):
            return thing  # type: ignore[return-value]
        if isinstance(thing, str):
            thing = thing.strip()
            family = families.find(thing)
            if family is None and (thing in (short := plugins.short_names()) or plugins.is_name(thing)):
                return cls.of(plugins.load(short.get(thing, thing)))
            if module := families.registering_module(thing):
                plugins.trust([module])
            return cls(thing, normalise=bool(family and family.normalise))
        env = custom.adopt(thing)
        return cls(plugins.label(env.make if isinstance(env, Factory) else type(env)), env)

    @property
    def family(self) -> Family | None:
        """None for the user's own environment."""
        return None if self.custom is not None else families.find(self.id)

    @property
    def spec(self) -> EnvSpec:
        """The environment's spec; a UserError if the environment cannot be created."""
        on_host = self.host()
        return self.make().spec if on_host is None else on_host.spec

    def host(self) -> HostEnv | None:
        """The environment if it lives on the host; None if it lives on the device or does not exist."""
        factory = self.custom if isinstance(self.custom, Factory) else None
        if factory is None and not (self.family and self.family.on_host):
            return None
        self._refuse_minigrid_fields()
        if self.noise:
            raise UserError(f"noise is added on the device; {self.id} lives on the host. Leave noise at 0.")
        env = HostEnv(self.id, self.normalise, factory)
        if self.normalise and env.spec.kind != "vector":
            raise UserError(f"{self.id} has image observations, which cannot be normalised. Leave normalise off.")
        return env

    def make(self) -> DeviceEnv:
        """The device environment; a UserError if it cannot be created."""
        if self.host() is not None:
            raise UserError(f"This works only with device environments; {self.id} lives on the host.")
        if self.normalise:
            raise UserError(f"normalise works only for host environments; {self.id} lives on the device. Leave it off.")
        if isinstance(self.custom, plugins.Unavailable):
            raise UserError(self.custom.why)
        env: DeviceEnv
        if self.custom is not None:
            self._refuse_minigrid_fields()
            env = self.custom
        else:
            family = families.get(self.id)
            if family.module == "etd.envs.minigrid":
                env = family.make(self.id, view_size=self.view_size, see_through_walls=self.see_through_walls)
            else:
                self._refuse_minigrid_fields()
                env = family.make(self.id)
        return Noisy(env, self.noise) if self.noise else env

    def _refuse_minigrid_fields(self) -> None:
        if (self.view_size, self.see_through_walls) != (Task.view_size, Task.see_through_walls):
            raise UserError(f"view_size and see_through_walls apply only to MiniGrid. Leave them out for {self.id}.")
