"""Acting with environments on the host: a loop over steps; learning is the same compiled function.

One pool serves all seeds. The policy is called once per step for half the environments of every seed while the other
half steps; the rollout is assembled on the host and copied to the device once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from etd.core.types import PyTree, Rollout, Transition
from etd.envs.host.env import HostEnv, Normaliser, Running
from etd.envs.host.pool import WorkerPool
from etd.training.collect import to_env
from etd.training.spec_check import too_long

LASTING = ("obs", "value", "hidden", "features")
"""Fields of a Rollout with one more row than it has steps."""


class HostCollector:
    """S x N host environments, and the loop that acts in them. Arrays are [S, N, ...] NumPy."""

    def __init__(
        self, env: HostEnv, seeds: list[int], stream: str, saved: Running, say: Callable[[str], None] = print
    ) -> None:
        """Start the workers and replay every environment to its state in ``saved`` [S, N]."""
        self.env, self.spec = env, env.spec
        self.running: Running = jax.tree.map(np.array, saved)  # a writable copy
        self.shape = (len(seeds), self.running.episode.shape[1])
        num_envs = self.shape[1]
        half = -(-num_envs // 2)
        self.groups = [slice(0, half), slice(half, num_envs)][: 1 + (num_envs > 1)]
        names = [(seed, number) for seed in seeds for number in range(num_envs)]
        self.waited = 0.0
        """seconds spent waiting for environments"""
        self.played: dict[str, np.ndarray] = {}
        """of the last rollout [S, T, N]: each step's episode number, and whether the step only ended a lost episode"""
        self.pool = WorkerPool(env, names, [number // half for _, number in names], stream, say)
        try:
            self._begin(say)
        except BaseException:
            self.close()
            raise

    def _begin(self, say: Callable[[str], None]) -> None:
        time, actions, present = (self._flat(x) for x in self.running[1:4])
        past = {row: (actions[row, : time[row]], int(present[row])) for row in np.flatnonzero(time).tolist()}
        lost = self.pool.begin(self._flat(self.running.episode), past)
        if lost:
            say(
                f"{lost} of {self.pool.rows} environments did not return to their saved state when replayed, so their "
                f"episodes were truncated. {self.env.id} is not deterministic, so resuming it is not exact."
            )
        self.running.present[:] = self._pool("present")
        new = self.normaliser is not None and bool((self.normaliser.seen < 1).all())
        self.obs = self._seen(slice(None), np.full(self.shape, new))

    def close(self) -> None:
        """Stop the workers."""
        self.pool.close()

    @property
    def normaliser(self) -> Normaliser | None:
        """A view of the running normaliser, [S*N, ...]."""
        inner = self.running.normaliser
        return None if inner is None else Normaliser(*(self._flat(field) for field in inner))

    def rollout(
        self, act: Callable, policy: PyTree, hidden: np.ndarray, noise: np.ndarray
    ) -> tuple[np.ndarray, Rollout]:
        """Act for the T steps of ``noise`` [S, T, N, ...]: the recurrent states [S, N, H] afterwards, and the Rollout,
        leaves [S, T, N, ...]. ``act`` comes from ``compiled.make_actor``."""
        steps, hidden = noise.shape[1], np.array(hidden)
        rows: dict[str, Any] = {}
        for t in range(steps + 1):
            for group, part in enumerate(self.groups):
                if t:
                    self._wait()
                    hidden[:, part] *= ~self._take(rows, part, t - 1, steps)[..., None]
                # After the last step, only the policy's output for the last observation is needed.
                drawn = noise[:, min(t, steps - 1), part]
                row, after = jax.device_get(act(policy, self.obs[:, part], hidden[:, part], drawn))
                row |= {"obs": self.obs[:, part], "hidden": hidden[:, part]}
                self._write(rows, row, part, t, steps)
                if t < steps:
                    hidden[:, part] = after
                    self._do(row["action"], part)
                    self.pool.step(group)
        self.played = {name: rows.pop(name) for name in ("episode", "lost")}
        step = Transition(**{name: rows.pop(name, None) for name in Transition._fields})
        return hidden, Rollout(**rows, step=step)

    def _do(self, action: np.ndarray, part: slice) -> None:
        """Give a group its actions [S, G, ...], clipped, and record them."""
        if (longest := int(self.running.time[:, part].max())) >= self.spec.max_steps:
            raise too_long(self.spec, longest + 1)
        self._pool("action")[:, part] = taken = to_env(action, self.spec.action)
        seed, number = np.ogrid[: self.shape[0], part]
        self.running.actions[seed, number, self.running.time[:, part]] = taken
        self.running.time[:, part] += 1

    def _take(self, rows: dict[str, np.ndarray], part: slice, t: int, steps: int) -> np.ndarray:
        """Record the results of a group's step; which episodes it ended, [S, G]."""
        names = [name for name in Transition._fields if name != "achieved" or self.spec.achievements]
        step = {name: self._pool(name)[:, part] for name in names}
        done = step["terminated"] | step["truncated"]
        step["next_obs"] = self._seen(part, np.ones_like(done), "next_obs")
        step |= {"episode": self.running.episode[:, part], "lost": self._pool("lost")[:, part]}
        self._write(rows, step, part, t, steps)
        self.obs[:, part] = self._seen(part, done)
        for name in ("episode", "present"):
            getattr(self.running, name)[:, part] = self._pool(name)[:, part]
        self.running.time[:, part] *= ~done
        return done

    def _seen(self, part: slice, new: np.ndarray, name: str = "obs") -> np.ndarray:
        """A group's observations [S, G, ...] as the policy sees them; the ``new`` [S, G] ones update the normaliser."""
        obs = self._pool(name)[:, part]
        if self.normaliser is None:
            return obs.copy()
        rows = np.arange(self.pool.rows).reshape(self.shape)[:, part]
        self.normaliser.enter(obs[new], rows[new])
        return self.normaliser(obs.reshape(rows.size, -1), rows.ravel()).reshape(obs.shape)

    def _write(self, rows: dict[str, np.ndarray], row: dict[str, np.ndarray], part: slice, t: int, steps: int) -> None:
        """Write a group's row [S, G, ...] as step ``t`` of the rollout."""
        for name, values in row.items():
            length = steps + (name in LASTING)
            if name not in rows:
                rows[name] = np.empty((self.shape[0], length, self.shape[1], *values.shape[2:]), values.dtype)
            if t < length:
                rows[name][:, t, part] = values

    def _wait(self) -> None:
        began = time.perf_counter()
        self.pool.wait()
        self.waited += time.perf_counter() - began

    def _pool(self, name: str) -> np.ndarray:
        """A shared array as [S, N, ...]."""
        array: np.ndarray = getattr(self.pool.block, name)
        return array.reshape(*self.shape, *array.shape[1:])

    def _flat(self, array: np.ndarray) -> np.ndarray:
        """[S, N, ...] as [S*N, ...]."""
        return array.reshape(self.pool.rows, *array.shape[2:])
