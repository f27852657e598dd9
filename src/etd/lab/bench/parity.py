"""Compare our MiniGrid with Farama's: the same level and the same actions in both, checked at every step.

Farama's level (grid, agent, carried object, mission) is translated into our state, actions chosen on their side are
applied to both, and observation, reward, terminated and truncated must be equal, bit for bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from etd.core.types import Transition
from etd.envs.minigrid.actions import ACTIONS
from etd.envs.minigrid.env import MiniGrid, make
from etd.envs.minigrid.table import IDS, find
from etd.envs.minigrid.world import EMPTY, WALL, World, cell
from etd.lab.bench.scripted_player import ScriptedPlayer

CHUNK = 256
"""Steps compared at once: Farama's run one by one, ours as one compiled scan."""


@dataclass
class Report:
    """The result of a comparison."""

    steps: int = 0
    episodes: int = 0
    mismatches: int = 0
    by_level: dict[str, int] = field(default_factory=dict)
    """Steps compared, by level."""
    first: str = ""
    """A description of the first mismatch; empty if there was none."""


def farama(name: str, **options: Any) -> Any:
    """Farama's own environment for that level (unwrapped)."""
    try:
        import gymnasium
        import minigrid  # noqa: F401  (registers its levels)
    except ImportError as error:
        raise ImportError("comparing with Farama's MiniGrid needs it installed: pip install 'etd[minigrid]'") from error
    original, extra = find(name).farama or (name, ())
    with warnings.catch_warnings():
        # Gymnasium warns about every v0 that has a v1; here v0 is intended.
        warnings.simplefilter("ignore")
        return gymnasium.make(original, disable_env_checker=True, **dict(extra), **options).unwrapped


def translate(env: Any, size: int) -> World:
    """Farama's current state as ours, on the host."""
    grid = np.full((size, size), WALL, np.int32)
    for y in range(env.height):
        for x in range(env.width):
            grid[y, x] = encode(env.grid.get(x, y))
    numbers = (*env.agent_pos, env.agent_dir, encode(env.carrying), env.step_count, _target(env))
    # NumPy stands in for JAX's arrays on the host.
    return World(grid, *(np.int32(number) for number in numbers))  # type: ignore[arg-type]


def encode(thing: Any) -> int:
    """One of Farama's objects as a cell."""
    if thing is None:
        return EMPTY
    kind, colour, state = thing.encode()
    inside = 0 if thing.contains is None else encode(thing.contains)
    return int(cell(kind, colour, state, inside))


def _target(env: Any) -> int:
    if hasattr(env, "targetType"):
        from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX

        return int(cell(OBJECT_TO_IDX[env.targetType], COLOR_TO_IDX[env.targetColor]))
    return encode(getattr(env, "obj", None))


class Segment(NamedTuple):
    """At most CHUNK steps of one of Farama's episodes; arrays are padded to CHUNK."""

    start: World
    action: np.ndarray[Any, Any]
    obs: np.ndarray[Any, Any]
    reward: np.ndarray[Any, Any]
    terminated: np.ndarray[Any, Any]
    truncated: np.ndarray[Any, Any]
    end: World
    length: int


def play(env: Any, size: int, choose: Callable[[], int], first_obs: Any) -> tuple[Segment, bool]:
    """One segment of Farama's environment from its current state, and whether its episode ended."""
    view = env.agent_view_size
    action = np.zeros(CHUNK, np.int32)
    # Row 0 is the observation before the first step, so that first observations are compared as well.
    obs = np.zeros((CHUNK + 1, view, view, 3), np.uint8)
    reward, terminated, truncated = np.zeros(CHUNK, np.float32), np.zeros(CHUNK, bool), np.zeros(CHUNK, bool)
    start, obs[0] = translate(env, size), first_obs
    for t in range(CHUNK):
        action[t] = choose()
        seen, paid, terminated[t], truncated[t], _ = env.step(action[t])
        obs[t + 1], reward[t] = seen["image"], paid
        if terminated[t] or truncated[t]:
            break
    ended = bool(terminated[t] or truncated[t])
    return Segment(start, action, obs, reward, terminated, truncated, translate(env, size), t + 1), ended


def record(name: str, steps: int, seed: int, **options: Any) -> tuple[list[Segment], int]:
    """At least ``steps`` steps of Farama's level, by random or scripted play; and the number of finished episodes."""
    env = farama(name, **options)
    rng = np.random.default_rng([seed, IDS.index(name)])
    size = max(env.width, env.height)
    segments: list[Segment] = []
    done, episodes, seen = True, 0, None
    while sum(segment.length for segment in segments) < steps:
        if done:
            seen = env.reset(seed=int(rng.integers(1 << 31)))[0]["image"]
            # Start some episodes close to the step limit, which short runs would otherwise never reach.
            if rng.random() < 0.25:
                env.step_count = max(0, env.max_steps - int(rng.integers(1, 100)))
            choose = ScriptedPlayer(env, rng) if rng.random() < 0.7 else lambda: int(rng.integers(ACTIONS))
        segment, done = play(env, size, choose, seen)
        seen = segment.obs[segment.length]
        segments.append(segment)
        episodes += done
    return segments, episodes


BATCH = 16


@cache
def _replayer(env: MiniGrid) -> Callable[[World, Any], tuple[World, Any, Transition]]:
    """Our steps for a batch of segments: (worlds, first observations, transitions), time-major [CHUNK, BATCH]."""

    def replay(start: World, actions: Any) -> Any:
        def one(world: World, action: Any) -> tuple[World, tuple[World, Transition]]:
            world, transition = jax.vmap(env.step)(world, action)
            return world, (world, transition)

        _, (worlds, transitions) = jax.lax.scan(one, start, actions)
        return worlds, jax.vmap(env.observe)(start), transitions

    return jax.jit(replay)


def compare(env: MiniGrid, segments: Sequence[Segment]) -> tuple[int, str]:
    """How many steps of ``segments`` differ on our side, and a description of the first."""
    mismatches, first = 0, ""
    for begin in range(0, len(segments), BATCH):
        batch = list(segments[begin : begin + BATCH])
        padded = batch + [batch[0]] * (BATCH - len(batch))
        start = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *[segment.start for segment in padded])
        actions = np.stack([segment.action for segment in padded], axis=1)
        worlds, first_obs, ours = jax.device_get(_replayer(env)(start, actions))
        for b, segment in enumerate(batch):
            wrong = _differences(segment, b, worlds, first_obs, ours)
            mismatches += len(wrong)
            first = first or (f"{env.name}: {wrong[0]}" if wrong else "")
    return mismatches, first


def _differences(segment: Segment, b: int, worlds: World, first_obs: Any, ours: Transition) -> list[str]:
    """A description of each step of a segment that differs; its first observation and last state count as steps."""
    length, wrong = segment.length, []
    if not np.array_equal(first_obs[b], segment.obs[0]):
        wrong.append("first observation")
    for t in range(length):
        fields = {
            "observation": np.array_equal(ours.next_obs[t, b], segment.obs[t + 1]),
            "reward": ours.reward[t, b] == segment.reward[t],
            "terminated": ours.terminated[t, b] == segment.terminated[t],
            "truncated": ours.truncated[t, b] == segment.truncated[t],
        }
        if not all(fields.values()):
            names = [name for name, equal in fields.items() if not equal]
            wrong.append(f"{', '.join(names)} after step {t} (actions {segment.action[: t + 1].tolist()})")
    end = jax.tree.map(lambda leaf: leaf[length - 1, b], worlds)
    if not all(jax.tree.leaves(jax.tree.map(np.array_equal, end, segment.end))):
        wrong.append(f"state after step {length - 1}")
    return wrong


def run(
    steps: int, ids: Sequence[str] = tuple(IDS), seed: int = 0, tell: Callable[[str], None] = lambda name: None
) -> Report:
    """At least ``steps`` steps in total, split evenly over ``ids``; ``tell`` is called with each level as it starts."""
    report = Report()
    share = -(-steps // len(ids))
    for name in ids:
        tell(name)
        segments, episodes = record(name, share, seed)
        mismatches, first = compare(make(name), segments)
        report.by_level[name] = sum(segment.length for segment in segments)
        report.steps += report.by_level[name]
        report.episodes += episodes
        report.mismatches += mismatches
        report.first = report.first or first
    return report
