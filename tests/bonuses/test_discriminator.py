from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from episodes import comparisons, drifting, memory_holds
from oracle import ACTIONS, BOX_SPEC, ENVS, KEY, SMALL, SPEC, STEPS, Weights

from etd.bonuses import Discriminator
from etd.bonuses.discriminator import Queue, draw, enqueue
from etd.bonuses.representations import Move
from etd.core.moments import Moments

BONUS = Discriminator(**SMALL, queue=20, epochs=1, minibatch=10)


@pytest.fixture(scope="module")
def state(fill):
    return lambda seed, spec=SPEC: fill(lambda key: BONUS.init(key, spec, ENVS), seed)


class Ring:
    """The queue's rule, one step and environment after another."""

    def __init__(self, size):
        self.rows, self.place, self.mean, self.first, self.added = [None] * size, 0, 0.0, True, 0

    def add(self, next_obs, bonus):
        for rows, worths in zip(np.asarray(next_obs), np.asarray(bonus), strict=True):
            for row, worth in zip(rows, worths, strict=True):
                if self.first or worth >= self.mean:
                    self.rows[self.place] = row
                    self.place = (self.place + 1) % len(self.rows)
                    self.added += 1
        self.first = False
        self.mean = np.float32(0.9) * self.mean + np.float32(0.1) * np.mean(bonus)

    def holds(self, queue):
        assert queue.added == self.added
        kept = [row for row in self.rows if row is not None]
        np.testing.assert_array_equal(queue.rows[: len(kept)], kept)
        np.testing.assert_array_equal(queue.rows[len(kept) :], 0)
        np.testing.assert_allclose(queue.moments.mean, self.mean, rtol=1e-5)


def test_bonus_and_queue_over_three_rollouts(quick, fill, rollouts):
    """The bonus from pasts in lists, the queue from a ring; the model learns in between, through ``improve``."""

    @quick
    def step(state, rollout):
        after, scored = BONUS.score(state, rollout, KEY)
        return after, scored, *BONUS.improve(after, rollout, scored.trace, KEY)

    state = fill(lambda key: BONUS.init(key, SPEC, ENVS))
    state = state._replace(extra=BONUS.empty_queue(SPEC))
    pasts, ring = [[] for _ in range(ENVS)], Ring(20)
    for rollout, still in zip(drifting(rollouts), rollouts, strict=True):
        rollout = rollout if ring.first else still  # later ones return to old states, which are worth nothing
        weights = Weights(state.learner)
        after, scored, state, metrics = step(state, rollout)
        expected = np.zeros((STEPS, ENVS))
        for t, n, past, new in comparisons(rollout, pasts, lambda obs, w=weights: w.trunk("trunk", obs)):
            expected[t, n] = min(np.linalg.norm(old - new) for old in past)
        np.testing.assert_allclose(scored.bonus, expected, rtol=1e-5, atol=1e-5)
        memory_holds(after.memory, pasts)
        ring.add(rollout.next_obs, scored.bonus)
        ring.holds(state.extra)
        assert metrics["queue_filled"] == 1
    assert 30 < ring.added < 90


@pytest.mark.parametrize("size", [7, 31, 70, 200])
def test_queue_takes_the_first_rollout_whole_and_then_what_beats_the_mean(quick, rng, rollouts, size):
    """Bonuses on both sides of the mean and below zero; sizes with several turns of the ring at once, one, none."""
    queue = Queue(jnp.zeros((size, 3)), jnp.zeros((), jnp.int32), Moments.start())
    ring, add = Ring(size), quick(enqueue)
    worth = [
        rng.normal(size=(STEPS, ENVS)) - 1,
        rng.normal(size=(STEPS, ENVS)) / 10 - 0.1,
        np.full((STEPS, ENVS), -9.0),
    ]
    worth[1][::2] += 5  # this rollout's own mean is far from the earlier ones'
    for bonus, rollout in zip(worth, rollouts, strict=True):
        before = ring.added
        queue = add(queue, rollout, jnp.asarray(bonus, jnp.float32))
        ring.add(rollout.next_obs, np.float32(bonus))
        ring.holds(queue)
        assert (ring.added - before == 0) == (bonus[0, 0] == -9)
    assert 30 < ring.added < 60


def test_queue_takes_what_equals_the_mean(quick, rollouts):
    """A bonus that has always been 0 stays worth keeping."""
    queue = Queue(jnp.zeros((50, 3)), jnp.int32(3), Moments.start())
    assert quick(enqueue)(queue, rollouts[0], jnp.zeros((STEPS, ENVS))).added == 33


def test_draws_are_uniform_over_what_differs(quick, rng):
    """Of three in the queue, one the true successor: missed twice with probability 1/9, else one of the other two."""
    points = np.concatenate([rng.normal(size=(3, 3)), np.full((5, 3), 99.0)]).astype(np.float32)  # five never filled
    queue = Queue(jnp.asarray(points), jnp.int32(3), Moments.start())
    which = np.arange(9000) % 3
    fake, different = (np.asarray(x) for x in quick(lambda true: draw(queue, true, KEY))(points[which]))
    drawn = np.argmax((fake[:, None] == points[:3]).all(-1), 1)
    assert (fake[:, None] == points[:3]).all(-1).any(1).all()
    np.testing.assert_array_equal(drawn != which, different)
    assert abs((~different).mean() - 1 / 9) < 4 * np.sqrt(8 / 81 / 9000)
    for true in range(3):
        for other in {0, 1, 2} - {true}:
            assert abs((drawn[which == true] == other).mean() - 4 / 9) < 4 * np.sqrt(20 / 81 / 3000)


def test_draws_of_a_full_ring_reach_every_slot(quick):
    queue = Queue(jnp.arange(5.0)[:, None], jnp.int32(12), Moments.start())
    fake, different = quick(lambda true: draw(queue, true, KEY))(jnp.full((200, 1), 7.0))
    assert set(np.asarray(fake)[:, 0]) == {0, 1, 2, 3, 4}
    assert different.all()


def test_images_differ_by_one_cell(quick):
    """Of whole observations: one byte is enough, and only all alike is the same."""
    one = np.zeros((4, 4, 3), np.uint8)
    other = one.copy()
    other[3, 2, 1] = 1
    queue = Queue(jnp.asarray(np.stack([one])), jnp.int32(1), Moments.start())
    _, different = quick(lambda true: draw(queue, true, KEY))(np.stack([one, other]))
    np.testing.assert_array_equal(different, [False, True])


@pytest.mark.parametrize("spec", [SPEC, BOX_SPEC], ids=["choices", "vectors"])
@pytest.mark.parametrize("size", [1, 2, 40])
def test_loss_weighs_both_classes(quick, state, rng, spec, size):
    """One by one, with a queue in which others are seldom or never missing, or always: then only the truth counts."""
    points = rng.normal(size=(size, 3)).astype(np.float32)
    queue = Queue(jnp.asarray(points), jnp.int32(size), Moments.start())
    obs, next_obs = rng.normal(size=(10, 3)).astype(np.float32), points[np.arange(10) % size]
    action = rng.integers(ACTIONS, size=10) if spec is SPEC else rng.normal(size=(10, 2)).astype(np.float32)
    described = np.eye(ACTIONS)[action] if spec is SPEC else action
    learner = state(0, spec).learner
    (loss, metrics), (fake, different) = quick(
        lambda batch: (BONUS.loss(learner.net(), queue, batch, KEY), draw(queue, batch.next_obs, KEY))
    )(Move(obs, jnp.asarray(action), next_obs))
    weights = Weights(learner)
    entropy, right = {True: [], False: []}, []
    for b in range(10):
        for true, successor in [(True, next_obs[b])] + [(False, np.asarray(fake)[b])] * bool(different[b]):
            ends = [weights.trunk("trunk", end) for end in (obs[b], successor)]
            logit = weights.linear("logit", weights.block("hidden", np.concatenate([*ends, described[b]])))[0]
            entropy[true].append(np.log1p(np.exp(-logit if true else logit)))
            right.append((logit > 0) == true)
    count = len(entropy[False])
    assert (count == 0, 0 < count < 10, count == 10) == (size == 1, size == 2, size == 40)
    expected = np.mean(entropy[True]) / 2 + (10 / count * np.mean(entropy[False]) / 2 if count else 0)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"], np.mean(right), rtol=1e-6)


def test_a_batch_without_others_has_a_finite_slope(descent, state, rng):
    obs = rng.normal(size=(4, 3)).astype(np.float32)
    queue = Queue(jnp.asarray(obs[:1]), jnp.int32(1), Moments.start())
    batch = Move(obs, jnp.zeros(4, jnp.int32), np.repeat(obs[:1], 4, 0))
    leaves = jax.tree.leaves(descent(BONUS, state(0).learner, batch, queue)[1])
    assert all(np.isfinite(leaf).all() for leaf in leaves)
    assert any((leaf != 0).any() for leaf in leaves)
