from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from etd.core.keys import named
from etd.core.types import Array, Discrete, EnvSpec, Transition
from etd.envs import autoreset

SHORTEST, LONGEST = 2, 4


class Place(NamedTuple):
    level: Array
    time: Array


@dataclass(frozen=True)
class Numbered:
    """A level is a random number; an episode ends by action 1 from its second step on, or after four."""

    @property
    def spec(self):
        return EnvSpec("numbered", (2,), "int32", 1.0, Discrete(2), LONGEST, SHORTEST, "vector")

    def observe(self, place):
        return jnp.stack([place.level, place.time])

    def reset(self, key):
        place = Place(jax.random.randint(key, (), 0, 2**30), jnp.zeros((), jnp.int32))
        return place, self.observe(place)

    def step(self, place, action, key):
        place = place._replace(time=place.time + 1)
        ended, late = (action == 1) & (place.time >= SHORTEST), place.time >= LONGEST
        nothing = jnp.zeros((), jnp.uint32)
        return place, Transition(self.observe(place), jnp.zeros(()), ended, late, nothing)


def play(quick, key, actions, steps):
    """Observations before every step and the transitions, [T, N]; ``steps`` is the rollout length."""
    env = Numbered()
    size = autoreset.pool_size(env.spec, steps)
    envs = quick(lambda: autoreset.begin(env, key, actions.shape[1]))()

    @quick
    def rollout(envs, actions):
        pool = autoreset.generate(env, key, envs, size)

        def one(envs, action):
            after, transition = autoreset.step(env, pool, envs, action, key)
            return after, (envs, transition)

        return (*jax.lax.scan(one, envs, actions), pool)

    rows = []
    for start in range(0, len(actions), steps):
        before = np.asarray(envs.episode)
        envs, row, _ = rollout(envs, actions[start : start + steps])
        assert (np.asarray(envs.episode) - before <= size).all()  # so no start was used twice
        rows.append(row)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *rows)


def test_every_episode_has_the_level_of_its_name(quick, rng):
    steps, envs, rollouts = 5, 4, 6
    key = jax.random.key(3)
    actions = rng.integers(2, size=(steps * rollouts, envs))
    actions[:, 0], actions[:, 1] = 1, 0  # ends as early and as late as can be
    before, transition = play(quick, key, actions, steps)

    @quick
    @jax.vmap
    def level(n, k):
        return Numbered().reset(named(key, "level", n, k))[1][0]

    names = np.stack(np.meshgrid(np.arange(envs), np.arange(20), indexing="ij")).reshape(2, -1)
    levels = np.asarray(level(*names)).reshape(envs, 20)
    assert len(np.unique(levels)) == levels.size
    episode, time = np.zeros(envs, int), np.zeros(envs, int)
    for t in range(steps * rollouts):
        np.testing.assert_array_equal(before.now.obs[t], np.stack([levels[np.arange(envs), episode], time], 1))
        np.testing.assert_array_equal(before.now.state.level[t], before.now.obs[t][:, 0])
        np.testing.assert_array_equal(before.episode[t], episode + 1)
        # The true successor is that of the old level, also at its end.
        np.testing.assert_array_equal(transition.next_obs[t], before.now.obs[t] + [0, 1])
        done = ((actions[t] == 1) & (time + 1 >= SHORTEST)) | (time + 1 >= LONGEST)
        np.testing.assert_array_equal(transition.done[t], done)
        episode, time = episode + done, np.where(done, 0, time + 1)
    assert episode[0] == steps * rollouts // SHORTEST
    assert episode[1] == steps * rollouts // LONGEST


def test_levels_do_not_depend_on_the_rollout_length(quick, rng):
    actions = rng.integers(2, size=(12, 3))
    short = play(quick, jax.random.key(0), actions, 3)
    whole = play(quick, jax.random.key(0), actions, 12)
    jax.tree.map(np.testing.assert_array_equal, short, whole)


def test_starts_taken_twice_are_counted(quick):
    """Two environments, one start each: the first ends at steps 2 and 4 of 4, the second at step 4 alone."""
    env, key = Numbered(), jax.random.key(0)

    @quick
    def run(actions):
        envs = autoreset.begin(env, key, 2)
        pool = autoreset.generate(env, key, envs, 1)
        after, _ = jax.lax.scan(lambda envs, action: autoreset.step(env, pool, envs, action, key), envs, actions)
        return autoreset.repeated(pool, after)

    assert run(jnp.array([[1, 0]] * 4)) == 1
    assert run(jnp.array([[0, 0]] * 4)) == 0


def test_pool_is_as_small_as_the_worst_case_allows():
    spec = Numbered().spec
    # An episode that came over may end at once, the next two steps later: ends at steps 1, 3, 5 of 5 or 6.
    assert [autoreset.pool_size(spec, steps) for steps in (1, 2, 3, 5, 6)] == [1, 1, 2, 3, 3]
