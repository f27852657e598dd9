"""One tiny task behind both protocols: five cells in a row, start in the middle, 1 at the right end, nothing at the
left, seven steps at most. Importing this module registers it as Corridor-v0 in Gymnasium, with faults on demand."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from time import sleep

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from etd.core.types import Discrete, EnvSpec, Transition

CELLS, LIMIT = 5, 7
HOST = "gymnasium:tests.corridor:Corridor-v0"


@dataclass(frozen=True)
class Corridor:
    """On the device. A state is (cell, time)."""

    @property
    def spec(self):
        return EnvSpec("corridor", (CELLS + 1,), "float32", 1.0, Discrete(2), LIMIT, 2, "vector")

    def reset(self, key):
        return (jnp.int32(CELLS // 2), jnp.int32(0)), self.observe(CELLS // 2, 0)

    def observe(self, cell, time):
        return jnp.append(jax.nn.one_hot(cell, CELLS), time / LIMIT).astype(jnp.float32)

    def step(self, state, action, key):
        cell, time = state[0] + 2 * action - 1, state[1] + 1
        ended = (cell == 0) | (cell == CELLS - 1)
        reward = (cell == CELLS - 1).astype(jnp.float32)
        named = (cell * 10 + time).astype(jnp.uint32)
        return (cell, time), Transition(self.observe(cell, time), reward, ended, time == LIMIT, named)


class HostCorridor(gymnasium.Env):
    """On the host. Files in the folder CORRIDOR_FAULTS make workers fail, see ``_fail``."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    can_succeed = True
    observation_space = gymnasium.spaces.Box(0, 1, (CELLS + 1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None, drift=False):
        self.render_mode, self.drift = render_mode, drift
        _fail("build")

    def reset(self, *, seed=None, options=None):
        _fail("reset")
        super().reset(seed=seed)
        self.cell, self.time = CELLS // 2, 0
        return self.observe(), {}

    def observe(self):
        obs = np.append(np.eye(CELLS)[self.cell], self.time / LIMIT).astype(np.float32)
        return obs + np.float32(os.getpid() % 1000 * 1e-6) if self.drift else obs

    def step(self, action):
        _fail("step")
        self.cell, self.time = self.cell + 2 * action - 1, self.time + 1
        ended = self.cell in (0, CELLS - 1)
        return self.observe(), float(self.cell == CELLS - 1), ended, self.time == LIMIT, {}

    def render(self):
        picture = np.full((8, 8 * CELLS, 3), 255, np.uint8)
        picture[:, 8 * self.cell : 8 * self.cell + 8] = (220, 40, 40)
        return picture

    def close(self):
        if folder := os.environ.get("CORRIDOR_CLOSED"):
            (Path(folder) / f"{os.getpid()}-{id(self)}").touch()


_resets: list[str] = []
"""of this process"""


def _fail(when):
    """Each file in the folder is a fault that happens once, in the order of their names: WHEN HOW. 'always' in place of
    WHEN is in every step, 'third' in the reset after the worker's third episode or so."""
    folder = os.environ.get("CORRIDOR_FAULTS")
    file = min(Path(folder).iterdir(), default=None) if folder else None
    if file is None:
        return None
    try:
        fault = file.read_text()
        if fault.startswith("always") and when == "step":
            pass
        elif fault.startswith("third") and when == "reset":
            _resets.append(when)
            if len(_resets) < 5:  # two to begin with, then three episodes' ends
                return None
            file.unlink()
        elif fault.startswith(when):
            file.unlink()
        else:
            return None
    except FileNotFoundError:  # another process was first
        return None
    if fault.endswith("wait"):
        return sleep(0.5)
    if fault.endswith("spawn and hang"):
        child = subprocess.Popen(["sleep", "1000"])
        (Path(folder).parent / "child").write_text(str(child.pid))
    if fault.endswith("hang"):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        while True:
            sleep(60)
    if fault.endswith("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.endswith("hang up"):
        raise ConnectionResetError("nobody is there")
    raise RuntimeError("the floor gave way [/dev/floor]")


gymnasium.register("Corridor-v0", HostCorridor, max_episode_steps=LIMIT)
gymnasium.register("Drift-v0", HostCorridor, max_episode_steps=LIMIT, kwargs={"drift": True})
