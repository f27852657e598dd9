"""Environments. A ``Task`` names one and makes it."""

from __future__ import annotations

from dataclasses import dataclass

from etd.core.errors import UserError, unknown
from etd.core.limits import limited
from etd.core.types import EnvSpec
from etd.envs import craftax, host, maze, minigrid
from etd.envs.base import DeviceEnv
from etd.envs.host.env import HostEnv
from etd.envs.noise import Noisy


@dataclass(frozen=True)
class Task:
    """Which environment to learn in. On the device it is compiled with the rest of training; on the host it is stepped
    by worker processes."""

    id: str = "MiniGrid-DoorKey-8x8-v0"
    view_size: int = 7
    """side of the square the agent sees"""
    see_through_walls: bool | None = None
    """None keeps what MiniGrid does for the level"""
    noise: float = limited(0.0, least=0)
    """standard deviation of Gaussian noise on observations; 0.1 in the authors' code, variance 0.1 in the paper"""
    normalise: bool = False
    """standardise vectors that a host's environment gives by its own running mean and variance"""

    @property
    def spec(self) -> EnvSpec:
        """What can be known of it, or a sentence on why it cannot be made."""
        on_host = self.host()
        return self.make().spec if on_host is None else on_host.spec

    def host(self) -> HostEnv | None:
        """The environment if it lives on the host; None if on the device or nowhere."""
        if host.find(self.id) is None:
            return None
        self._refuse_minigrid_fields()
        if self.noise:
            raise UserError(f"noise is added on the device; {self.id} lives on the host. Leave noise at 0.")
        env = HostEnv(self.id, self.normalise)
        if self.normalise and env.spec.kind != "vector":
            raise UserError(f"{self.id} is seen in images, which are not normalised. Leave normalise off.")
        return env

    def make(self) -> DeviceEnv:
        """The environment on the device, or a sentence on why it cannot be made."""
        env: DeviceEnv
        if host.find(self.id) is not None:
            raise UserError(f"This works with environments on the device only; {self.id} lives on the host.")
        if self.normalise:
            raise UserError(f"normalise serves vectors from the host; {self.id} lives on the device. Leave it off.")
        if self.id in minigrid.IDS:
            env = minigrid.make(self.id, view_size=self.view_size, see_through_walls=self.see_through_walls)
        elif self.id not in (*maze.IDS, *craftax.IDS):
            raise unknown("environment", self.id, ids(), "See `etd list environments`.")
        else:
            self._refuse_minigrid_fields()
            env = maze.make(self.id) if self.id in maze.IDS else craftax.make(self.id)
        return Noisy(env, self.noise) if self.noise else env

    def _refuse_minigrid_fields(self) -> None:
        if (self.view_size, self.see_through_walls) != (Task.view_size, Task.see_through_walls):
            raise UserError(f"view_size and see_through_walls are MiniGrid's; {self.id} has no such view.")


def ids() -> list[str]:
    """Every environment that a Task can name; a suite with a prefix has more than are listed."""
    return [*minigrid.IDS, *maze.IDS, *craftax.IDS, *(name for suite in host.SUITES for name in suite.ids)]


def missing_extra(name: str) -> str:
    """The extra that has to be installed before this environment can be made; empty if none."""
    if name in craftax.IDS:
        return "craftax" if craftax.missing() else ""
    suite = host.find(name)
    return suite.extra if suite and host.missing(suite) else ""
