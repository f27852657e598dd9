from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from episodes import drifting
from oracle import ACTIONS, ENVS, FEATURES, KEY, SMALL, SPEC, STEPS, Weights, sigmoid

from etd.bonuses import DEIR
from etd.bonuses.discriminator import Queue, draw
from etd.bonuses.representations import Move
from etd.core.moments import Moments
from etd.nets.cells import NoCell

BONUS = DEIR(**SMALL, queue=16)


@pytest.fixture(scope="module")
def state(fill):
    """The trunk's small weights keep the recurrent state away from its bounds, where all states look alike."""
    return lambda seed: fill(lambda key: BONUS.init(key, SPEC, ENVS), seed, bound=0.2)


def test_bonus_divides_by_how_far_apart_the_paths_are(quick, state, rollouts):
    """States and recurrent states in lists, over episodes that span rollouts with weights of their own."""
    score = quick(lambda state, rollout: BONUS.score(state, rollout, KEY))
    current = state(0)
    hidden = np.zeros((ENVS, FEATURES))  # h_{t-1}, seen all before the present state
    pasts = [[] for _ in range(ENVS)]  # (phi(s_k), h_{k-1})
    for k, rollout in enumerate(drifting(rollouts)):
        current = current._replace(learner=state(k).learner)
        weights = Weights(current.learner)
        current, scored = score(current, rollout)
        obs, next_obs, done = (np.asarray(x) for x in (rollout.obs, rollout.next_obs, rollout.done))
        expected, before = np.zeros((STEPS, ENVS)), np.zeros((STEPS, ENVS, FEATURES))
        for n, past in enumerate(pasts):
            for t in range(STEPS):
                phi, after = weights.trunk("trunk", obs[t, n]), weights.trunk("trunk", next_obs[t, n])
                if not past:
                    past.append((phi, np.zeros(FEATURES)))
                before[t, n] = hidden[n]
                hidden[n] = weights.gru("cell", phi, hidden[n])
                expected[t, n] = min(
                    ((old - after) ** 2).sum() / (np.linalg.norm(path - hidden[n]) + 1e-6) for old, path in past
                )
                past.append((after, hidden[n].copy()))
                if done[t, n]:
                    past.clear()
                    hidden[n] = 0
        np.testing.assert_allclose(scored.bonus, expected, rtol=1e-4)
        np.testing.assert_allclose(scored.trace.hidden, before, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(scored.trace.bonus, scored.bonus)
        np.testing.assert_allclose(current.memory.hidden, hidden, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(current.memory.seen.filled, [len(past) for past in pasts])
        for values, past in zip(np.asarray(current.memory.seen.values), pasts, strict=True):
            for value, entry in zip(values, past, strict=False):
                np.testing.assert_allclose(value, np.concatenate(entry), rtol=1e-4, atol=1e-6)


def test_examples_carry_the_recurrent_state_before_each_observation(quick, state, rollouts):
    """In the order of the steps: what belongs to (t, n) stands in row t N + n."""
    rollout = rollouts[0]
    hidden = jnp.arange(STEPS * ENVS * FEATURES, dtype=jnp.float32).reshape(STEPS, ENVS, FEATURES)
    _, scored = quick(lambda state: BONUS.score(state, rollout, KEY))(state(0))
    rows = BONUS.examples(state(0), rollout, scored.trace._replace(hidden=hidden), KEY)
    for t in range(STEPS):
        for n in range(ENVS):
            row = t * ENVS + n
            np.testing.assert_array_equal(rows.hidden[row], hidden[t, n])
            np.testing.assert_array_equal(rows.obs[row], rollout.obs[t, n])
            np.testing.assert_array_equal(rows.next_obs[row], rollout.next_obs[t, n])


def test_loss_reads_two_steps_from_the_stored_state(quick, state, rng):
    """Cross-entropy of true and other successors; a batch of 8 of whose others some are no others at all."""
    points = rng.normal(size=(2, 3)).astype(np.float32)
    queue = Queue(jnp.asarray(points), jnp.int32(7), Moments.start())
    obs, next_obs = rng.normal(size=(8, 3)).astype(np.float32), points[np.arange(8) % 2]
    action = rng.integers(ACTIONS, size=8)
    hidden = rng.uniform(-0.9, 0.9, (8, FEATURES)).astype(np.float32)
    learner = state(0).learner
    (loss, metrics), (fake, different) = quick(
        lambda batch: (BONUS.loss(learner.net(), queue, batch, KEY), draw(queue, batch.next_obs, KEY))
    )(Move(obs, jnp.asarray(action), next_obs, hidden))
    different = np.asarray(different)
    assert 0 < different.sum() < 8
    weights = Weights(learner)
    losses, right = {True: [], False: []}, 0
    for b in range(8):
        first = weights.gru("cell", weights.trunk("trunk", obs[b]), hidden[b].astype(np.float64))
        for true, successor in ((True, next_obs[b]), (False, np.asarray(fake)[b])):
            if not true and not different[b]:
                continue
            second = weights.gru("cell", weights.trunk("trunk", successor), first)
            x = np.concatenate([first, second, np.eye(ACTIONS)[action[b]]])
            p = sigmoid(weights.linear("logit", weights.block("hidden", x))[0])
            losses[true].append(-np.log(p if true else 1 - p))
            right += (p > 0.5) == true
    smaller = 8 / len(losses[False])
    expected = (np.mean(losses[True]) + smaller * np.mean(losses[False])) / 2
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"], right / (8 + different.sum()), rtol=1e-6)


def test_without_a_cell_embeddings_take_the_place_of_recurrent_states(quick, fill, rollouts):
    """The path behind a state is the embedding before it, zero before an episode's first."""
    bonus = replace(BONUS, cell=NoCell())
    current = fill(lambda key: bonus.init(key, SPEC, ENVS), bound=0.2)
    score = quick(lambda state, rollout: bonus.score(state, rollout, KEY))
    weights = Weights(current.learner)
    pasts = [[] for _ in range(ENVS)]  # (phi(s_k), phi(s_{k-1}))
    for rollout in drifting(rollouts):
        current, scored = score(current, rollout)
        obs, next_obs, done = (np.asarray(x) for x in (rollout.obs, rollout.next_obs, rollout.done))
        for n, past in enumerate(pasts):
            for t in range(STEPS):
                phi, after = weights.trunk("trunk", obs[t, n]), weights.trunk("trunk", next_obs[t, n])
                if not past:
                    past.append((phi, np.zeros(FEATURES)))
                ratios = [((old - after) ** 2).sum() / (np.linalg.norm(path - phi) + 1e-6) for old, path in past]
                np.testing.assert_allclose(scored.bonus[t, n], min(ratios), rtol=1e-4)
                past.append((after, phi))
                if done[t, n]:
                    past.clear()
        np.testing.assert_array_equal(current.memory.filled, [len(past) for past in pasts])
