"""The child's side of the pool: a process that steps some environments in shared memory, told what to do by a pipe.

It is an interpreter of its own that calls ``main``, not a ``multiprocessing`` process, which would run the user's
script again. It ignores Ctrl-C, which is the parent's to handle, and ends when the parent does: the pipe closes, and on
Linux the kernel kills it, also in the midst of a step.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import traceback
import zlib
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from etd.core.types import Box, EnvSpec


class Place(NamedTuple):
    """One environment of the pool."""

    row: int
    """in the shared arrays"""
    group: int
    """environments of one group step together"""
    seed: int
    number: int
    """seed and number name the environment, whatever its row"""


class Orders(NamedTuple):
    """What a worker must know before its first command."""

    env: str
    spec: EnvSpec
    places: list[Place]
    rows: int
    """of the shared arrays"""
    stream: str
    revived: bool
    """the worker takes the place of a dead one"""


class Block:
    """The shared arrays of M environments."""

    obs: np.ndarray
    """[M, ...] what the policy sees next"""
    next_obs: np.ndarray
    """[M, ...] the true successor"""
    action: np.ndarray
    """[M] or [M, size]"""
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    fingerprint: np.ndarray
    """[M] uint32 of next_obs"""
    present: np.ndarray
    """[M] uint32 of obs"""
    achieved: np.ndarray
    """[M, K] bool"""
    episode: np.ndarray
    """[M] int32: which one each plays, counted from 0"""

    def __init__(self, spec: EnvSpec, rows: int, memory: mmap.mmap | None):
        """Without ``memory``, only to learn the ``size`` in bytes."""
        fields: dict[str, tuple[Any, tuple[int, ...]]] = {
            "obs": (spec.obs_dtype, spec.obs_shape),
            "next_obs": (spec.obs_dtype, spec.obs_shape),
            "action": (np.float32, (spec.action.size,)) if isinstance(spec.action, Box) else (np.int32, ()),
            "reward": (np.float32, ()),
            "terminated": (np.bool_, ()),
            "truncated": (np.bool_, ()),
            "fingerprint": (np.uint32, ()),
            "present": (np.uint32, ()),
            "achieved": (np.bool_, (len(spec.achievements),)),
            "episode": (np.int32, ()),
        }
        self.size = 0
        for name, (dtype, shape) in fields.items():
            if memory is not None:
                setattr(self, name, np.ndarray((rows, *shape), dtype, memory, self.size))
            count = rows * int(np.prod(shape)) * np.dtype(dtype).itemsize
            self.size += -(-count // 64) * 64


def episode_seed(stream: str, seed: int, number: int, episode: int) -> int:
    """The seed of one episode, named by environment and count alone: it does not depend on the policy or a resume."""
    words = np.random.SeedSequence((zlib.crc32(stream.encode()), seed, number, episode)).generate_state(1)
    return int(words[0] >> 1)  # some environments take 31 bits


def fingerprint(obs: np.ndarray) -> int:
    """Names a host's state by what is seen of it."""
    return zlib.crc32(np.ascontiguousarray(obs).data)


class Stepper:
    """The environments of one worker."""

    def __init__(self, orders: Orders, block: Block):
        from etd.envs import host

        self.orders, self.block = orders, block
        self.envs = {place.row: host.make(orders.env) for place in orders.places}
        self.lost = {place.row for place in orders.places} if orders.revived else set()

    def begin(self, past: dict[int, tuple[np.ndarray, int]]) -> int:
        """Start the episodes that ``block.episode`` names. ``past`` has what was done in some of them, [t, ...], and
        the fingerprint of what was then seen: do it again. How many were not seen again: their episodes are lost."""
        for place in self.orders.places:
            self.reset(place)
            if place.row in past and place.row not in self.lost and not self.replay(place.row, *past[place.row]):
                self.lost.add(place.row)
        return len(self.lost)

    def replay(self, row: int, actions: np.ndarray, seen: int) -> bool:
        for action in actions:
            obs, _, terminated, truncated, _ = self.envs[row].step(self.action(action))
            self.see(row, obs)
            if terminated or truncated:
                return False
        return int(self.block.present[row]) == seen

    def step(self, group: int) -> int:
        """Do the actions in the block; how many episodes ended by themselves."""
        return sum(self.advance(place) for place in self.orders.places if place.group == group)

    def advance(self, place: Place) -> int:
        block, row = self.block, place.row
        if row in self.lost:  # its episode died with the last worker: it ends where it was last seen
            self.lost.discard(row)
            block.next_obs[row], block.fingerprint[row] = block.obs[row], block.present[row]
            block.reward[row], block.terminated[row], block.truncated[row] = 0, False, True
            self.next_episode(place)
            return 0
        obs, reward, terminated, truncated, info = self.envs[row].step(self.action(block.action[row]))
        block.next_obs[row] = obs
        block.fingerprint[row] = fingerprint(block.next_obs[row])
        block.reward[row], block.terminated[row], block.truncated[row] = reward, terminated, truncated
        if self.orders.spec.achievements:
            block.achieved[row] = info["achieved"]
        if terminated or truncated:
            self.next_episode(place)
            return 1
        block.obs[row], block.present[row] = block.next_obs[row], block.fingerprint[row]
        return 0

    def next_episode(self, place: Place) -> None:
        self.block.episode[place.row] += 1
        self.reset(place)

    def reset(self, place: Place) -> None:
        name = (self.orders.stream, place.seed, place.number, int(self.block.episode[place.row]))
        obs, _ = self.envs[place.row].reset(seed=episode_seed(*name))
        self.see(place.row, obs)

    def see(self, row: int, obs: np.ndarray) -> None:
        self.block.obs[row] = obs
        self.block.present[row] = fingerprint(self.block.obs[row])

    def action(self, action: np.ndarray) -> Any:
        """As Gymnasium's environments take it."""
        return np.asarray(action) if isinstance(self.orders.spec.action, Box) else int(action)


def main(pipe: int, memory: int, parent: int) -> None:
    """Answer commands until the pipe closes. What goes wrong in an environment is sent home as its traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with(parent)
    line = Connection(pipe)
    try:
        orders: Orders = line.recv()
        size = Block(orders.spec, orders.rows, None).size
        stepper = Stepper(orders, Block(orders.spec, orders.rows, mmap.mmap(memory, size)))
        line.send(0)
        while True:
            command, argument = line.recv()
            line.send(getattr(stepper, command)(argument))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except BaseException:
        line.send(traceback.format_exc())


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it was gone before we could ask
        os._exit(1)
