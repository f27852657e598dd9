"""The child side of the pool: a process that steps some environments in shared memory, on commands from a pipe.

It is a separate interpreter that calls ``main``, not a ``multiprocessing`` process, which would run the user's script
again. It ignores Ctrl-C and SIGTERM, which the parent handles, and exits when the parent does: the pipe closes, and on
Linux the kernel kills it, even in the middle of a step.

If a worker dies, the part of a group's step that it finished is kept, and its replacement does the rest: ``acted`` and
``fresh`` record how far it got.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import signal
import sys
import traceback
import zlib
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from etd.core.errors import UserError
from etd.core.types import Box, EnvSpec


class Slot(NamedTuple):
    """One environment of the pool."""

    row: int
    """in the shared arrays"""
    group: int
    """environments of one group step together"""
    seed: int
    number: int
    """seed and number identify the environment, whatever its row"""


class WorkerConfig(NamedTuple):
    """What a worker needs before its first command."""

    env: str
    spec: EnvSpec
    slots: list[Slot]
    rows: int
    """of the shared arrays"""
    stream: str
    revived: bool
    """the worker replaces a dead one"""
    factory: bytes = b""
    """pickled factory of the user's own environment"""
    imports: tuple[str, ...] = ()
    """modules the user has named"""


class Refusal(str):
    """What the user has to put right, in a sentence; another worker would meet the same."""

    __slots__ = ()


class SharedArrays:
    """The shared arrays of M environments."""

    obs: np.ndarray
    """[M, ...] what the policy sees next"""
    next_obs: np.ndarray
    """[M, ...] the true next observation"""
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
    """[M] int32: the current episode's number, from 0"""
    acted: np.ndarray
    """[M] bool: the group's last requested step is done"""
    fresh: np.ndarray
    """[M] bool: the episode is at its start, so a reset recreates it"""
    lost: np.ndarray
    """[M] bool: the last step only ended a lost episode"""
    calls: np.ndarray
    """[M] uint32: calls of the environment so far; a worker in which none of these grows is hung"""

    def __init__(self, spec: EnvSpec, rows: int, memory: mmap.mmap | None):
        """Without ``memory``, only the ``size`` in bytes is computed."""
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
            "acted": (np.bool_, ()),
            "fresh": (np.bool_, ()),
            "lost": (np.bool_, ()),
            "calls": (np.uint32, ()),
        }
        self.size = 0
        for name, (dtype, shape) in fields.items():
            if memory is not None:
                setattr(self, name, np.ndarray((rows, *shape), dtype, memory, self.size))
            count = rows * int(np.prod(shape)) * np.dtype(dtype).itemsize
            self.size += -(-count // 64) * 64


def episode_seed(stream: str, seed: int, number: int, episode: int) -> int:
    """The seed of one episode. It depends only on the environment and the episode number, not on the policy or a
    resume."""
    words = np.random.SeedSequence((zlib.crc32(stream.encode()), seed, number, episode)).generate_state(1)
    return int(words[0] >> 1)  # some environments take 31 bits


def fingerprint(obs: np.ndarray) -> int:
    """A hash of the observation, which stands for the host's state."""
    return zlib.crc32(np.ascontiguousarray(obs).data)


class Stepper:
    """The environments of one worker."""

    def __init__(self, orders: WorkerConfig, block: SharedArrays):
        from etd.core import plugins
        from etd.envs.host.env import HostEnv

        plugins.trust(orders.imports)
        env = HostEnv(orders.env, factory=pickle.loads(orders.factory) if orders.factory else None)
        self.orders, self.block = orders, block
        self.envs: dict[int, Any] = {}
        for slot in orders.slots:
            block.calls[slot.row] += 1
            self.envs[slot.row] = env.make()
        self.lost: set[int] = set()
        for slot in orders.slots if orders.revived else ():
            if block.fresh[slot.row]:
                self.reset(slot)
            else:
                self.lost.add(slot.row)

    def begin(self, past: dict[int, tuple[np.ndarray, int]]) -> int:
        """Start the episodes in ``block.episode`` and replay ``past``: the actions [t, ...] of some of them, and the
        fingerprint of the observation they led to. Returns how many led elsewhere; those episodes are lost."""
        self.lost = set()
        for slot in self.orders.slots:
            self.reset(slot)
            if slot.row in past:
                self.block.fresh[slot.row] = False
                if not self.replay(slot.row, *past[slot.row]):
                    self.lost.add(slot.row)
        return len(self.lost)

    def replay(self, row: int, actions: np.ndarray, seen: int) -> bool:
        for action in actions:
            obs, _, terminated, truncated, _ = self.call(row).step(self.action(action))
            self.see(row, obs)
            if terminated or truncated:
                return False
        return int(self.block.present[row]) == seen

    def step(self, group: int) -> int:
        """Take the actions in the block; returns how many episodes ended on their own."""
        return sum(self.advance(slot) for slot in self.orders.slots if slot.group == group)

    def advance(self, slot: Slot) -> int:
        block, row = self.block, slot.row
        if block.acted[row]:  # by a worker that died afterwards
            return 0
        block.lost[row] = row in self.lost
        if block.lost[row]:  # the episode was lost with its worker: it ends at its last observation
            self.lost.discard(row)
            block.next_obs[row], block.fingerprint[row] = block.obs[row], block.present[row]
            block.reward[row], block.terminated[row], block.truncated[row] = 0, False, True
        else:
            obs, reward, terminated, truncated, info = self.call(row).step(self.action(block.action[row]))
            block.next_obs[row] = obs
            block.fingerprint[row] = fingerprint(block.next_obs[row])
            block.reward[row], block.terminated[row], block.truncated[row] = reward, terminated, truncated
            if self.orders.spec.achievements:
                block.achieved[row] = info["achieved"]
        done = bool(block.terminated[row] | block.truncated[row])
        if done:
            block.episode[row] += 1
        else:
            block.obs[row], block.present[row] = block.next_obs[row], block.fingerprint[row]
        block.fresh[row], block.acted[row] = done, True
        if done:
            self.reset(slot)
        return int(done and not block.lost[row])

    def reset(self, slot: Slot) -> None:
        name = (self.orders.stream, slot.seed, slot.number, int(self.block.episode[slot.row]))
        obs, _ = self.call(slot.row).reset(seed=episode_seed(*name))
        self.see(slot.row, obs)
        self.block.fresh[slot.row] = True

    def call(self, row: int) -> Any:
        """The environment, which is about to be called."""
        self.block.calls[row] += 1
        return self.envs[row]

    def see(self, row: int, obs: np.ndarray) -> None:
        self.block.obs[row] = obs
        self.block.present[row] = fingerprint(self.block.obs[row])

    def action(self, action: np.ndarray) -> Any:
        """In the form that Gymnasium environments expect."""
        return np.asarray(action) if isinstance(self.orders.spec.action, Box) else int(action)


def main(pipe: int, memory: int, parent: int) -> None:
    """Answer commands until the pipe closes. An environment's error is sent to the parent as a traceback."""
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)
    die_with(parent)
    line = Connection(pipe)
    orders: Any = _receive(line)
    if orders is None:
        return
    stepper = None
    try:
        size = SharedArrays(orders.spec, orders.rows, None).size
        stepper = Stepper(orders, SharedArrays(orders.spec, orders.rows, mmap.mmap(memory, size)))
        answer = 0
        while _send(line, answer) and (message := _receive(line)):
            command, argument = message
            answer = getattr(stepper, command)(argument)
    except UserError as error:
        _send(line, Refusal(error))
    except BaseException:
        _send(line, traceback.format_exc())
    line.close()
    for env in stepper.envs.values() if stepper else ():
        with suppress(Exception):
            env.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # even if an environment has left threads running


def _send(line: Connection, answer: int | str) -> bool:
    """Send an answer; whether the parent is still there."""
    with suppress(OSError):
        line.send(answer)
        return True
    return False


def _receive(line: Connection) -> Any:
    """The next message, or None if the parent is gone."""
    with suppress(EOFError, OSError):
        return line.recv()
    return None


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it was gone before the call
        os._exit(1)
