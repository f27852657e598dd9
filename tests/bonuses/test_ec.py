from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import ENVS, KEY, SMALL, SPEC, STEPS, Weights

from etd.bonuses import EC
from etd.bonuses.ec import LabelledPair

VARIANTS = {
    "small": EC(**SMALL, capacity=3, threshold=0.5),
    "medium": EC(**SMALL, capacity=5, threshold=0.7, percentile=30.0, scale=2.0, offset=0.5),
    "every state": EC(**SMALL, capacity=4, threshold=1.0, percentile=50.0),
    "vast": EC(**SMALL, capacity=50, threshold=0.5),
}
BONUS = VARIANTS["small"]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def scramble(x):
    """MurmurHash3's last step, on Python's integers."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B % 2**32
    x = (x ^ (x >> 13)) * 0xC2B2AE35 % 2**32
    return x ^ (x >> 16)


def compare(weights, first, second):
    return sigmoid(weights.linear("logit", weights.block("hidden", np.concatenate([first, second])))[0])


class Curiosity:
    """One environment's memory, by the rule."""

    def __init__(self, bonus):
        self.bonus, self.kept, self.stored = bonus, [], 0
        self.overwritten, self.refused, self.ever = 0, 0, 0

    def store(self, entry):
        if len(self.kept) < self.bonus.capacity:
            self.kept.append(entry)
        else:
            self.kept[scramble(self.stored) % self.bonus.capacity] = entry
            self.overwritten += 1
        self.stored += 1
        self.ever += 1

    def step(self, weights, obs, next_obs, done):
        if not self.kept:
            self.store(weights.trunk("trunk", obs))
        new = weights.trunk("trunk", next_obs)
        likeness = np.percentile([compare(weights, old, new) for old in self.kept], self.bonus.percentile)
        if likeness < self.bonus.threshold or self.bonus.threshold == 1:
            self.store(new)
        else:
            self.refused += 1
        if done:
            self.kept, self.stored = [], 0
        return self.bonus.scale * (self.bonus.offset - likeness)


@pytest.fixture(scope="module")
def states(fill):
    """With weights of a number; the variants share them."""

    def build(seed):
        return {name: fill(lambda key, b=b: b.init(key, SPEC, ENVS), seed, bound=0.5) for name, b in VARIANTS.items()}

    return build


def test_bonus_and_memory_by_the_rule(quick, states, rollouts):
    """Other weights in every rollout: memory keeps the embeddings of the time, the comparator is today's."""
    score = quick(
        lambda states, rollout: {name: bonus.score(states[name], rollout, KEY) for name, bonus in VARIANTS.items()}
    )
    current = states(0)
    rules = {name: [Curiosity(bonus) for _ in range(ENVS)] for name, bonus in VARIANTS.items()}
    for k, rollout in enumerate(rollouts):
        fresh = states(k)
        current = {name: state._replace(learner=fresh[name].learner) for name, state in current.items()}
        weights = Weights(fresh["small"].learner)
        results = score(current, rollout)
        obs, next_obs, done = (np.asarray(x) for x in (rollout.obs, rollout.next_obs, rollout.done))
        for name, (after, scored) in results.items():
            expected = np.zeros((STEPS, ENVS))
            for n, rule in enumerate(rules[name]):
                for t in range(STEPS):
                    expected[t, n] = rule.step(weights, obs[t, n], next_obs[t, n], done[t, n])
            np.testing.assert_allclose(scored.bonus, expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(after.memory.filled, [len(rule.kept) for rule in rules[name]])
            for values, rule in zip(np.asarray(after.memory.values), rules[name], strict=True):
                for value, entry in zip(values, rule.kept, strict=False):
                    np.testing.assert_allclose(value, entry, rtol=1e-5, atol=1e-5)
            most = max(len(rule.kept) for rule in rules[name])
            np.testing.assert_allclose(scored.metrics["memory_filled"], most / VARIANTS[name].capacity, rtol=1e-6)
        current = {name: result[0] for name, result in results.items()}
    for name, environments in rules.items():  # every branch was taken
        assert any(rule.overwritten for rule in environments) == (name != "vast")
        assert any(rule.refused for rule in environments) == (name != "every state")
        assert sum(rule.ever for rule in environments) > ENVS


def test_loss_counts_valid_pairs_only(quick, states, rng):
    learner = states(0)["small"].learner
    first, second = rng.normal(size=(2, 10, 3)).astype(np.float32)
    near = rng.random(10) < 0.5
    valid = near | (rng.random(10) < 0.6)
    loss, metrics = quick(lambda batch: BONUS.loss(learner.net(), (), batch, KEY))(
        LabelledPair(first, second, near, valid)
    )
    weights, entropy, right = Weights(learner), [], []
    for b in np.flatnonzero(valid):
        p = compare(weights, weights.trunk("trunk", first[b]), weights.trunk("trunk", second[b]))
        entropy.append(-np.log(p if near[b] else 1 - p))
        right.append((p > 0.5) == near[b])
    assert near.sum() < len(entropy) < 10
    np.testing.assert_allclose(loss, np.mean(entropy), rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"], np.mean(right), rtol=1e-6)


def test_a_batch_without_valid_pairs_teaches_nothing(descent, states, rng):
    learner = states(0)["small"].learner
    first, second = rng.normal(size=(2, 4, 3)).astype(np.float32)
    none = jnp.zeros(4, bool)
    (loss, _), grads = descent(BONUS, learner, LabelledPair(first, second, none, none))
    for leaf in jax.tree.leaves((loss, grads)):
        np.testing.assert_array_equal(leaf, 0)


def test_threshold_is_strict(quick, states, rollouts):
    """A state as like to memory as the threshold says is not stored: with a comparator of zero weights all are 0.5."""
    state = states(0)["small"]
    head = {**state.learner.params, "logit": jax.tree.map(jnp.zeros_like, state.learner.params["logit"])}
    state = state._replace(learner=type(state.learner)(state.learner.graph, head, state.learner.stats, ()))
    after, scored = quick(lambda state: BONUS.score(state, rollouts[0], KEY))(state)
    np.testing.assert_array_equal(scored.bonus, 0.5)
    assert after.memory.filled.max() == 1
