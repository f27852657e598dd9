"""Does an environment match its spec? Findings in plain words from random play, on device or host."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from etd.core.errors import UserError
from etd.core.keys import named
from etd.core.limits import SEEDS, is_whole
from etd.core.types import Array, Box, EnvSpec, Key, Transition
from etd.core.words import counted
from etd.envs import Task, autoreset, custom
from etd.envs.base import DeviceEnv, random_actions
from etd.envs.host.env import HostEnv
from etd.lab.check.finding import Finding

STEPS = 512
ENVS = 8
HOST_ENVS = 2


class RandomPlay(NamedTuple):
    """Random play of N environments that reset when an episode ends; NumPy."""

    first: np.ndarray
    """[N, ...] first observations"""
    obs: np.ndarray
    """[T, N, ...] successors"""
    reward: np.ndarray
    """[T, N]"""
    terminated: np.ndarray
    """[T, N]"""
    truncated: np.ndarray
    """[T, N]"""


def examine(task: Task, seed: int = 0) -> list[Finding]:
    """Play twice with one seed and once with another, and check what happened. Exceptions raised by the environment's
    own code propagate."""
    if not is_whole(seed, 0, SEEDS - 2):  # the next one is played, too
        raise UserError(f"seed = {seed!r} is out of range: it must be at least 0 and below {SEEDS - 1}.")
    host = task.host()
    if host is None:
        env = task.make()
        custom.verify(env)  # shapes and types, before anything is compiled
        plays = [_on_device(env, jax.random.key(one)) for one in (seed, seed, seed + 1)]
    else:
        plays = [_on_host(host, one) for one in (seed, seed, seed + 1)]
    spec, (play, again, other) = task.spec, plays
    age = ages(play)
    lengths = age[play.terminated | play.truncated]
    return [
        shapes(spec, play),
        values(spec, play),
        deterministic(play, again),
        varied(play, other),
        longest(spec, age),
        shortest(spec, lengths),
        ends(spec, play, age),
    ]


def _on_device(env: DeviceEnv, key: Key) -> RandomPlay:
    space = env.spec.action

    def play(key: Key) -> tuple[Array, Transition]:
        envs = autoreset.begin(env, key, ENVS)
        # As many starts as steps: the spec's shortest episode is what is being checked.
        pool = autoreset.generate(env, key, envs, STEPS)

        def advance(envs: autoreset.Envs, now: tuple[Array, Key]) -> tuple[autoreset.Envs, Transition]:
            return autoreset.step(env, pool, envs, *now)

        lead = (STEPS, ENVS)
        actions = random_actions(space, named(key, "actions"), lead)
        keys = jax.random.split(named(key, "env"), STEPS)
        return envs.now.obs, jax.lax.scan(advance, envs, (actions, keys))[1]

    first, steps = jax.device_get(jax.jit(play)(key))
    return RandomPlay(first, steps.next_obs, steps.reward, steps.terminated, steps.truncated)


def _on_host(host: HostEnv, seed: int) -> RandomPlay:
    spec, columns = host.spec, []
    for number in range(HOST_ENVS):
        env: Any = host.make()
        rng = np.random.default_rng([seed, number])
        try:
            first = env.reset(seed=int(rng.integers(1 << 31)))[0]
            rows = []
            for _ in range(STEPS):
                action = _random(spec, rng)
                obs, reward, terminated, truncated, _ = env.step(action)
                rows.append((np.array(obs), reward, terminated, truncated))
                if terminated or truncated:
                    env.reset(seed=int(rng.integers(1 << 31)))
            columns.append((np.array(first), *(np.array(column) for column in zip(*rows, strict=True))))
        finally:
            env.close()
    first, *rest = zip(*columns, strict=True)
    return RandomPlay(np.stack(first), *(np.stack(column, 1) for column in rest))


def _random(spec: EnvSpec, rng: np.random.Generator) -> Any:
    if isinstance(spec.action, Box):
        return rng.uniform(spec.action.low, spec.action.high, spec.action.size).astype(np.float32)
    return int(rng.integers(spec.action.n))


def ages(play: RandomPlay) -> np.ndarray:
    """[T, N] the number of each step within its episode, from 1."""
    done = play.terminated | play.truncated
    age, rows = np.zeros(done.shape[1], int), []
    for row in done:
        age = age + 1
        rows.append(age)
        age = np.where(row, 0, age)
    return np.stack(rows)


# Checks ----------------------------------------------------------------------------------------------------------


def shapes(spec: EnvSpec, play: RandomPlay) -> Finding:
    """Observations match the spec."""
    wanted = f"{spec.obs_dtype}{list(spec.obs_shape)}"
    for what, obs, lead in (("the first observation", play.first, 1), ("an observation", play.obs, 2)):
        seen = f"{obs.dtype}{list(obs.shape[lead:])}"
        if seen != wanted:
            return Finding(False, f"{what} is {seen}; the spec says {wanted}")
    return Finding(True, f"observations are {wanted}, as the spec says")


def values(spec: EnvSpec, play: RandomPlay) -> Finding:
    """Numbers are finite, images within their range."""
    if not np.isfinite(play.reward).all():
        return Finding(False, "some rewards are NaN or infinite")
    if not (np.isfinite(play.obs).all() and np.isfinite(play.first).all()):
        return Finding(False, "some observations have NaN or infinite entries")
    highest = float(max(play.obs.max(initial=0), play.first.max(initial=0)))
    if spec.kind != "vector" and highest > spec.obs_high:
        return Finding(False, f"images reach {highest:g}; the spec says at most {spec.obs_high:g} (obs_high)")
    return Finding(
        True, f"observations and rewards are finite; rewards from {play.reward.min():g} to {play.reward.max():g}"
    )


def deterministic(play: RandomPlay, again: RandomPlay) -> Finding:
    """The same seed and actions give the same steps; resuming relies on it."""
    pairs = list(zip(play, again, strict=True))
    if all(_equal(a, b) for a, b in pairs):
        return Finding(True, "the same seed and actions give the same episodes")
    differs = next((t for t in range(len(play.reward)) if not all(_equal(a[t], b[t]) for a, b in pairs[1:])), 0)
    return Finding(
        False,
        f"the same seed and actions give different episodes from step {differs} on, so resuming will not be exact. "
        "Draw all randomness from the key, or on the host from self.np_random",
    )


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    """NaN is NaN: that it is none of the values allowed is told elsewhere."""
    return np.array_equal(a, b, equal_nan=True)


def varied(play: RandomPlay, other: RandomPlay) -> Finding:
    """Whether seeds matter; either may be intended."""
    starts = {one.tobytes() for one in play.first}
    if _equal(play.first, other.first) or len(starts) == 1:
        return Finding(True, "every episode starts with the same observation")
    return Finding(True, f"episodes start differently ({len(starts)} first observations in {len(play.first)})")


def longest(spec: EnvSpec, age: np.ndarray) -> Finding:
    """No episode is longer than max_steps."""
    worst = int(age.max())
    if worst > spec.max_steps:
        words = f"an episode lasted {counted(worst, 'step')}; the spec says at most {spec.max_steps} (max_steps)"
        return Finding(False, f"{words}. Set truncated at the limit")
    return Finding(True, f"no episode was longer than {counted(worst, 'step')}; the spec says at most {spec.max_steps}")


def shortest(spec: EnvSpec, lengths: np.ndarray) -> Finding:
    """No episode ends before ``shortest``."""
    if not lengths.size:
        return Finding(True, f"no episode ended within {STEPS} steps of random play")
    least = int(lengths.min())
    if least < spec.shortest:
        return Finding(
            False, f"an episode took {counted(least, 'step')}; the spec says at least {spec.shortest} (shortest)"
        )
    words = f"no episode of {lengths.size:,} was shorter than {counted(least, 'step')}"
    return Finding(True, f"{words}; the spec says at least {spec.shortest}")


def ends(spec: EnvSpec, play: RandomPlay, age: np.ndarray) -> Finding:
    """Time-outs are truncated, and nothing else is."""
    done, limit = play.terminated | play.truncated, age >= spec.max_steps
    if not done.any():
        return Finding(True, "no episode ended, so terminated and truncated could not be checked")
    early, late = int((play.truncated & ~limit).sum()), int((play.terminated & ~play.truncated & limit).sum())
    if early:
        words = f"{counted(early, 'episode')} truncated before max_steps = {spec.max_steps}"
        return Finding(False, f"{words}; what the task ends should be terminated")
    if late and not (play.truncated & limit).any():
        words = f"of {counted(late, 'episode')} that reached max_steps all are terminated, none truncated"
        return Finding(False, f"{words}; time-outs should be truncated")
    counts = f"{int(play.terminated.sum())} terminated, {int(play.truncated.sum())} truncated"
    return Finding(True, f"episodes end as they should: {counts}")
