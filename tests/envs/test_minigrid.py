"""The MiniGrid package apart from Farama's: its table, refusals, rewards, fingerprints and the shape of its program."""

from __future__ import annotations

import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etd.envs.minigrid import IDS, make
from etd.envs.minigrid.actions import reward_at
from etd.envs.minigrid.table import LEVELS
from etd.envs.minigrid.world import EMPTY, World
from etd.envs.minigrid.world import fingerprint as name_state
from etd.lab.bench import speed

DOORKEY = "MiniGrid-DoorKey-8x8-v0"
RULES = [
    DOORKEY,
    "MiniGrid-Empty-5x5-v0",
    "MiniGrid-UnlockPickup-v0",
    "MiniGrid-Unlock-v0",
    "MiniGrid-Fetch-5x5-N2-v0",
    "MiniGrid-RedBlueDoors-6x6-v0",
]
"""One level for each rule of success, one that is seen through; steps of levels differ in nothing else but size."""


def primitives(jaxpr: jax.extend.core.Jaxpr) -> set[str]:
    """The names of all operations of a program, those inside its sub-programs included."""
    found = set()
    for equation in jaxpr.eqns:
        found.add(equation.primitive.name)
        for value in jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found |= primitives(inner)
    return found


@pytest.mark.parametrize("name", RULES)
def test_a_step_has_no_traced_indexing(name: str) -> None:
    """Gathers and scatters inside nested batches are what made other versions slow on accelerators."""
    env = make(name)
    state, _ = jax.eval_shape(env.reset, jax.random.key(0))
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, 3, *leaf.shape), leaf.dtype), state)
    step = jax.vmap(jax.vmap(lambda state, action: env.step(state, action)))
    program = jax.make_jaxpr(step)(batch, jax.ShapeDtypeStruct((2, 3), jnp.int32))
    assert not {op for op in primitives(program.jaxpr) if "gather" in op or "scatter" in op or "dynamic" in op}


@pytest.mark.parametrize("name", IDS)
def test_every_level_starts_as_a_world(name: str) -> None:
    """int32 throughout and no weak types: a scan carries the state, and no call compiles twice."""
    env = make(name)
    assert (hash(env), env) == (hash(make(name)), make(name))
    world = jax.eval_shape(env.level.generate, jax.random.key(0))
    size = max(env.level.width, env.level.height)
    assert world.grid.shape == (size, size)
    assert all(leaf.dtype == jnp.int32 and not leaf.weak_type for leaf in world)
    assert all(leaf.shape == () for leaf in world[1:])


@pytest.mark.parametrize("name", RULES)
def test_reset_and_step_agree_with_the_spec(name: str) -> None:
    env = make(name)
    spec = env.spec
    state, obs = jax.eval_shape(env.reset, jax.random.key(0))
    after, step = jax.eval_shape(env.step, state, jax.ShapeDtypeStruct((), jnp.int32), jax.random.key(0))
    assert obs.shape == step.next_obs.shape == spec.obs_shape
    assert obs.dtype == step.next_obs.dtype == jnp.dtype(spec.obs_dtype)
    assert (step.reward.dtype, step.terminated.dtype, step.fingerprint.dtype) == (jnp.float32, jnp.bool_, jnp.uint32)
    for before, now in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        assert (before.shape, before.dtype, before.weak_type) == (now.shape, now.dtype, False)


def test_rewards_are_double_precision_rounded_once() -> None:
    """For every step of every level, bit for bit."""
    limits = sorted({level.max_steps for level in LEVELS.values()})
    longest = np.arange(1, limits[-1] + 1)
    ours = jax.jit(lambda time: [reward_at(time, limit) for limit in limits])(longest)
    for limit, rewards in zip(limits, ours, strict=True):
        exact = np.array([1 - 0.9 * (time / limit) for time in range(1, limit + 1)])
        np.testing.assert_array_equal(rewards[:limit], exact.astype(np.float32))


def test_fingerprints_name_states() -> None:
    """Equal for equal states whatever the clock; different for all of many different states."""
    env = make("MiniGrid-ObstructedMaze-1Dlhb-v0")
    starts, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 3000))
    fingerprint = jax.jit(jax.vmap(name_state))
    turned = [starts._replace(direction=(starts.direction + turn) % 4) for turn in range(4)]
    later = starts._replace(time=starts.time + 5)
    np.testing.assert_array_equal(fingerprint(starts), fingerprint(later))
    assert not np.array_equal(fingerprint(starts), fingerprint(starts._replace(carried=starts.carried + 4)))
    states, codes = set(), set()
    for worlds in turned:
        codes |= set(np.asarray(fingerprint(worlds)).tolist())
        rows = zip(*(np.asarray(leaf) for leaf in (worlds.grid, worlds.x, worlds.y, worlds.direction)), strict=True)
        states |= {(grid.tobytes(), int(x), int(y), int(direction)) for grid, x, y, direction in rows}
    # 12,000 states in 2^32 codes: 0.02 collisions expected.
    assert len(states) > 10_000
    assert len(codes) == len(states)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: make("MiniGrid-DoorKey-8x8"), "Did you mean 'MiniGrid-DoorKey-8x8-v0'"),
        (lambda: make("ObstructedMaze-Ful-v1"), "Did you mean 'MiniGrid-ObstructedMaze-Full-v1'"),
        (lambda: make(DOORKEY, view_size=6), "odd"),
        (lambda: make(DOORKEY, view_size=1), "at least 3"),
        (lambda: make(DOORKEY, view_size=33), "at most 31"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(call, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        call()


def test_neither_gymnasium_nor_minigrid_is_imported() -> None:
    """The compiled levels need JAX alone."""
    code = (
        "import sys; sys.modules['gymnasium'] = sys.modules['minigrid'] = None\n"
        "import etd.envs.minigrid, etd.lab.bench.parity as parity\n"
        "try: parity.farama('MiniGrid-DoorKey-8x8-v0')\n"
        "except ImportError as error: assert 'pip install' in str(error)\n"
        "else: raise AssertionError('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_speed_is_steps_over_the_best_time() -> None:
    """A call of 100 steps that takes at least 10 ms cannot count as faster than 10,000 steps/s."""
    assert 1_000 < speed._rate(lambda: time.sleep(0.01), 100, seconds=0.1) <= 10_000
    measured = [speed.ours(make("MiniGrid-Empty-5x5-v0"), 2, 0.01, starts) for starts in (True, False)]
    assert [(row.what, row.batch) for row in measured] == [("etd", 2), ("etd, starts excluded", 2)]
    assert all(row.steps_per_s > 100 for row in measured)


def unsolved(env, worlds: World, depth: int) -> int:
    """How many different states ``depth`` steps reach from ``worlds``, no episode having ended on the way."""
    chunk = 4096

    @jax.jit
    def expand(batch: World):
        after, step = jax.vmap(lambda world: jax.vmap(lambda a: env.step(world, a))(jnp.arange(7)))(batch)
        return after, step.done, step.fingerprint

    count = worlds.x.shape[0]
    frontier, origin = worlds, np.arange(count)
    seen: set[tuple[int, int]] = set()
    for _ in range(depth):
        fresh: list[World] = []
        origins: list[int] = []
        for begin in range(0, len(origin), chunk):
            index = np.minimum(np.arange(begin, begin + chunk), len(origin) - 1)
            after, done, codes = jax.device_get(expand(jax.tree.map(lambda leaf, index=index: leaf[index], frontier)))
            assert not done.any()
            states = list(zip(np.repeat(origin[index], 7).tolist(), codes.ravel().tolist(), strict=True))
            keep = [i for i, state in enumerate(states) if not (state in seen or seen.add(state))]
            fresh.append(jax.tree.map(lambda leaf, keep=keep: leaf.reshape(-1, *leaf.shape[2:])[keep], after))
            origins += [states[i][0] for i in keep]
        frontier, origin = jax.tree.map(lambda *leaves: np.concatenate(leaves), *fresh), np.array(origins)
    return len(seen)


def check_shortest(name: str, levels: int) -> None:
    """No sequence of fewer than ``shortest`` actions ends an episode, by exhaustive search from some levels."""
    env = make(name)
    worlds = jax.device_get(jax.jit(jax.vmap(env.level.generate))(jax.random.split(jax.random.key(2), levels)))
    assert unsolved(env, worlds, env.spec.shortest - 1) > levels or env.spec.shortest == 1
    assert (worlds.carried == EMPTY).all()


@pytest.mark.parametrize("name", [DOORKEY, "MiniGrid-UnlockPickup-v0"])
def test_no_episode_is_shorter_than_the_table_says(name: str) -> None:
    check_shortest(name, 32)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in IDS if LEVELS[name].shortest > 1])
def test_no_episode_of_any_level_is_shorter(name: str) -> None:
    check_shortest(name, 16)
