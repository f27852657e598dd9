from __future__ import annotations

import jax
import numpy as np
import pytest
from oracle import (
    BOX_SPEC,
    ENVS,
    KEY,
    LONGEST,
    SMALL,
    SPEC,
    STEPS,
    Weights,
    distillation,
    inverse_model,
    places,
    plain,
)

from etd.bonuses import NGU

PAPER = NGU(**SMALL)
# Every number another one, so that both clips, the limit, the cluster and the neighbours' number come into play.
OTHER = NGU(
    **SMALL, source="own", neighbours=3, kernel=0.05, cluster=0.2, constant=0.3, limit=1.5, clip=1.6, momentum=0.8
)
VARIANTS = {"paper": PAPER, "other": OTHER}


@pytest.fixture(scope="module")
def states(fill):
    def build(seed):
        return {name: fill(lambda key, b=b: b.init(key, SPEC, ENVS), seed, 0.25) for name, b in VARIANTS.items()}

    return build


@pytest.fixture(scope="module")
def score(quick):
    return quick(lambda states, r: {name: b.score(states[name], r, KEY) for name, b in VARIANTS.items()})


class Oracle:
    """The bonus of one step of all environments after another, from lists of everything seen."""

    def __init__(self, bonus):
        self.bonus = bonus
        self.past = [[] for _ in range(ENVS)]
        self.means = []
        self.errors = []

    def step(self, weights, r, t):
        """Episodic and lifelong factor [N]."""
        b = self.bonus
        near = []
        for n in range(ENVS):
            present, after = (weights.trunk("inverse/trunk", obs[t, n]) for obs in (r.obs, r.next_obs))
            if not self.past[n]:
                self.past[n].append(present)
            near.append(sorted(((row - after) ** 2).sum() for row in self.past[n])[: b.neighbours])
            self.past[n].append(after)
            if r.done[t, n]:
                self.past[n] = []
        self.means.append(np.mean([np.mean(distances) for distances in near]))
        ages = b.momentum ** np.arange(len(self.means))[::-1]
        scale = (ages * self.means).sum() / ages.sum()
        episodic = []
        for distances in near:
            kernels = [b.kernel / (max(d / (scale + 1e-5) - b.cluster, 0) + b.kernel) for d in distances]
            similarity = np.sqrt(sum(kernels)) + b.constant
            episodic.append(0 if similarity > b.limit else 1 / similarity)

        own = b.source == "own"
        read = r.obs if own else r.features
        new = [distillation(weights, read[t, n], "error/", own) for n in range(ENVS)]
        self.errors += new
        lifelong = [1 + (e - np.mean(self.errors)) / (np.std(self.errors) + 1e-5) for e in new]
        return np.array(episodic), np.clip(lifelong, 1, b.clip)


def test_bonus_is_episodic_times_lifelong_novelty(score, states, rollouts):
    """The weights change from rollout to rollout; memory keeps embeddings as they were.

    The kernel magnifies rounding of distances: hence 2e-4.
    """
    current = states(0)
    oracles = {name: Oracle(bonus) for name, bonus in VARIANTS.items()}
    factors = {name: ([], []) for name in VARIANTS}
    for k, rollout in enumerate(rollouts):
        fresh = states(k)
        current = {name: state._replace(learner=fresh[name].learner) for name, state in current.items()}
        results = score(current, rollout)
        r = plain(rollout)
        for name, (after, scored) in results.items():
            weights, oracle = Weights(current[name].learner), oracles[name]
            rows = [oracle.step(weights, r, t) for t in range(STEPS)]
            episodic, lifelong = (np.array(part) for part in zip(*rows, strict=True))
            np.testing.assert_allclose(scored.bonus, episodic * lifelong, rtol=2e-4)
            np.testing.assert_allclose(scored.metrics["lifelong_mean"], lifelong.mean(), rtol=1e-5)
            for part, seen in zip((episodic, lifelong), factors[name], strict=True):
                seen.extend(part.ravel())

            filled = [len(rows) for rows in oracle.past]
            np.testing.assert_array_equal(after.memory.filled, filled)
            for n, rows in enumerate(oracle.past):
                if rows:
                    np.testing.assert_allclose(after.memory.values[n, : len(rows)], rows, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(scored.metrics["memory_filled"], max(filled) / (LONGEST + 1), rtol=1e-6)
            assert after.extra.errors.samples == len(oracle.errors)
            np.testing.assert_allclose(after.extra.errors.mean, np.mean(oracle.errors), rtol=1e-5)
            jax.tree.map(np.testing.assert_array_equal, after.learner, fresh[name].learner)
        current = {name: result[0] for name, result in results.items()}

    episodic, lifelong = factors["other"]
    assert 0 in episodic
    assert max(episodic) > 1
    assert min(lifelong) == 1
    assert max(lifelong) == 1.6
    assert len({round(x, 3) for x in factors["paper"][0]}) > 10


@pytest.mark.parametrize("name", ["discrete", "box"])
def test_loss_is_the_sum_of_both_models(descent, fill, rollouts, boxed, name):
    rollout, spec, bonus = {"discrete": (rollouts[1], SPEC, PAPER), "box": (boxed[1], BOX_SPEC, OTHER)}[name]
    state = fill(lambda key: bonus.init(key, spec, ENVS), 0, 0.25)

    (loss, metrics), grads = descent(bonus, state.learner, bonus.examples(state, rollout, (), KEY))
    weights, r = Weights(state.learner), plain(rollout)
    inverse, accuracy = inverse_model(weights, r, "inverse/")
    own = name == "box"
    read = r.obs if own else r.features
    error = np.mean([distillation(weights, read[t, n], "error/", own) for t, n in places(r)])
    np.testing.assert_allclose(loss, inverse + error, rtol=1e-5)
    np.testing.assert_allclose(metrics["inverse_loss"], inverse, rtol=1e-5)
    np.testing.assert_allclose(metrics["distillation_loss"], error, rtol=2e-5)
    assert ("accuracy" in metrics) == (name == "discrete")
    if name == "discrete":
        np.testing.assert_allclose(metrics["accuracy"], accuracy, rtol=1e-6)
    for part, grad in grads["error"].items():
        fixed = part in ("fixed", "fixed_trunk")
        assert all((np.asarray(leaf) == 0).all() == fixed for leaf in jax.tree.leaves(grad)), part


def test_which_fields_it_reads():
    assert PAPER.needs == {"features"}
    assert OTHER.needs == frozenset()
