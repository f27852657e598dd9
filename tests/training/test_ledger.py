from collections import deque

import jax.numpy as jnp
import numpy as np

from etd.core.types import Discrete, EnvSpec
from etd.training import ledger as ledgers


def spec_of(max_steps, *achievements):
    return EnvSpec("some", (1,), "float32", 1.0, Discrete(2), max_steps, 1, "vector", achievements, not achievements)


def test_against_bookkeeping_over_many_rollouts(quick, rng, rollout_of):
    steps, envs = 5, 3
    spec = spec_of(60)
    record = quick(ledgers.record, static_argnums=1)
    ledger = ledgers.start(envs, spec)
    totals, lengths, reached = np.zeros(envs), np.zeros(envs), [set() for _ in range(envs)]
    recent, episodes, states, first = deque(maxlen=100), 0, set(), -1
    names = rng.integers(2**32, size=40, dtype=np.uint32)
    for k in range(60):
        # No end for five rollouts, an end at every step of one, successes only from rollout 10.
        done = rng.random((steps, envs)) < (0.0 if k < 5 else 1.0 if k == 30 else 0.4)
        terminated = done & (rng.random((steps, envs)) < 0.5)
        reward = rng.integers(-4, 5, (steps, envs)) / 4
        if k < 10:
            reward = np.where(terminated, -np.abs(reward), reward)
        fingerprint = names[rng.integers(40, size=(steps, envs))]
        rollout = rollout_of(
            np.zeros((steps, envs, 1)), done, np.zeros((steps, envs, 1)), reward, terminated, fingerprint
        )
        now = (k + 1) * steps * envs
        ledger, metrics = record(ledger, spec, rollout, jnp.int32(now))
        for t in range(steps):
            totals, lengths = totals + reward[t], lengths + 1
            for n in range(envs):
                reached[n].add(int(fingerprint[t, n]))
            for n in np.flatnonzero(done[t]):
                success = terminated[t, n] and reward[t, n] > 0
                recent.append((totals[n], lengths[n], len(reached[n]), success))
                first = now if success and first < 0 else first
                totals[n] = lengths[n] = 0
                reached[n] = set()
                episodes += 1
        states |= set(fingerprint.ravel().tolist())
        np.testing.assert_array_equal(ledger.running, [totals, lengths, [len(some) for some in reached]])
        assert metrics["episodes"] == episodes
        assert metrics["first_success"] == first
        np.testing.assert_allclose(metrics["states"], len(states), rtol=0.01)
        averages = np.mean(np.array(recent, float), 0) if recent else [np.nan] * 4
        np.testing.assert_allclose(
            [metrics[name] for name in ("return", "length", "states_per_episode", "success")], averages, rtol=1e-5
        )
    assert episodes > 250
    assert first > 150
    np.testing.assert_array_equal(ledger.recent, np.array(recent, float).T)


def test_success_on_the_last_allowed_step(quick, rollout_of):
    """Time and task may end an episode together."""
    yes = np.ones((1, 1), bool)
    rollout = rollout_of(np.zeros((1, 1, 1)), yes, np.zeros((1, 1, 1)), np.ones((1, 1)))
    both = rollout._replace(step=rollout.step._replace(truncated=jnp.asarray(yes)))
    only_time = rollout._replace(step=rollout.step._replace(truncated=jnp.asarray(yes), terminated=jnp.asarray(~yes)))
    spec = spec_of(1)
    record = quick(ledgers.record, static_argnums=1)
    assert record(ledgers.start(1, spec), spec, both, jnp.int32(1))[1]["success"] == 1
    assert record(ledgers.start(1, spec), spec, only_time, jnp.int32(1))[1]["success"] == 0


def test_distinct_states_by_the_hundred_thousand(quick, rng, rollout_of):
    """Twice as many as there are bits, still within 1 %."""
    many = 2 * ledgers.SEEN_BITS
    nothing = np.zeros((1, many, 1), np.float32)
    names = rng.integers(2**32, size=(1, many), dtype=np.uint32)
    rollout = rollout_of(nothing, np.zeros((1, many), bool), nothing, fingerprint=names)
    spec = spec_of(1)
    metrics = quick(lambda rollout: ledgers.record(ledgers.start(many, spec), spec, rollout, 1)[1])(rollout)
    np.testing.assert_allclose(metrics["states"], len(np.unique(names)), rtol=0.01)


def test_achievements_count_once_per_finished_episode(quick, rollout_of):
    """Three episodes end; the first unlocks both, the second one of them, the third, in the next rollout, none."""
    spec = spec_of(9, "find_wood", "make_fire")
    record = quick(ledgers.record, static_argnums=1)
    nothing, done = np.zeros((3, 2, 1)), np.array([[0, 0], [1, 0], [0, 1]], bool)
    achieved = np.array([[[1, 0], [0, 0]], [[1, 1], [0, 1]], [[0, 0], [0, 1]]], bool)

    def with_marks(done, achieved):
        rollout = rollout_of(nothing[: len(done)], done, nothing[: len(done)], np.ones(done.shape))
        return rollout._replace(step=rollout.step._replace(achieved=jnp.asarray(achieved)))

    ledger, metrics = record(ledgers.start(2, spec), spec, with_marks(done, achieved), jnp.int32(6))
    assert (metrics["unlocked_find_wood"], metrics["unlocked_make_fire"]) == (0.5, 1.0)
    assert "success" not in metrics
    ended = np.array([[1, 0]], bool)
    _, metrics = record(ledger, spec, with_marks(ended, np.zeros((1, 2, 2), bool)), jnp.int32(8))
    rates = [metrics["unlocked_find_wood"], metrics["unlocked_make_fire"]]
    np.testing.assert_allclose(rates, [1 / 3, 2 / 3], rtol=1e-6)
    geometric = np.sqrt((1 + 100 / 3) * (1 + 200 / 3)) - 1
    np.testing.assert_allclose(metrics["score"], geometric, rtol=1e-5)


def test_the_score_of_equal_rates_is_the_rate_and_rare_ones_count():
    np.testing.assert_allclose(ledgers.score(jnp.full(22, 0.3)), 30, rtol=1e-5)
    even, one_sided = jnp.array([0.5, 0.5]), jnp.array([1.0, 0.0])
    assert ledgers.score(even) > ledgers.score(one_sided)
