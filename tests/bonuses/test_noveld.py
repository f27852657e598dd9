from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import ENVS, KEY, LONGEST, SMALL, SPEC, STEPS, Visits, Weights, distillation, places, plain

from etd.bonuses import NovelD
from etd.bonuses.rnd import Seen

POLICY = NovelD(**SMALL, fraction=0.8)
OWN = NovelD(**SMALL, source="own", floor=0.05)
VARIANTS = {"policy": POLICY, "own": OWN}


@pytest.fixture(scope="module")
def states(fill):
    def build(seed):
        return {name: fill(lambda key, b=b: b.init(key, SPEC, ENVS), seed) for name, b in VARIANTS.items()}

    return build


@pytest.fixture(scope="module")
def score(quick):
    return quick(lambda states, r: {name: b.score(states[name], r, KEY) for name, b in VARIANTS.items()})


def errors(weights, rollout, t, n, own):
    """e(s_t) and e(s_{t+1}); the policy has no embedding of a final observation."""
    ends = (rollout.obs[t, n], rollout.next_obs[t, n]) if own else rollout.features[t : t + 2, n]
    before, after = (distillation(weights, one, own=own) for one in ends)
    return before, after if own or not rollout.done[t, n] else None


def test_bonus_is_the_rise_of_the_error_at_first_visits(score, states, rollouts):
    current = states(0)
    past = [Visits() for _ in range(ENVS)]
    kinds = {name: set() for name in VARIANTS}
    for k, rollout in enumerate(rollouts):
        fresh = states(k)
        current = {name: state._replace(learner=fresh[name].learner) for name, state in current.items()}
        weights = {name: Weights(state.learner) for name, state in current.items()}
        results = score(current, rollout)
        r = plain(rollout)
        for t, n in places(r):
            count = past[n].step(r.obs[t, n], r.next_obs[t, n], r.done[t, n])
            for name, bonus in VARIANTS.items():
                before, after = errors(weights[name], r, t, n, name == "own")
                expected, kind = 0.0, "seen" if count > 1 else "unknown"
                if count == 1 and after is not None:
                    expected = max(after - bonus.fraction * before, bonus.floor)
                    kind = "floor" if expected == bonus.floor else "rise"
                kinds[name].add(kind)
                # A difference of errors that each round by 2e-5.
                atol = 2e-5 * (before + (after or 0))
                np.testing.assert_allclose(results[name][1].bonus[t, n], expected, rtol=1e-5, atol=atol)
        current = {name: result[0] for name, result in results.items()}
        filled = [len(one.past) for one in past]
        for name, (state, scored) in results.items():
            np.testing.assert_array_equal(state.memory.filled, filled)
            np.testing.assert_allclose(scored.metrics["memory_filled"], max(filled) / (LONGEST + 1), rtol=1e-6)
            jax.tree.map(np.testing.assert_array_equal, state.learner, states(k)[name].learner)
    assert kinds == {"policy": {"seen", "unknown", "floor", "rise"}, "own": {"seen", "floor", "rise"}}


@pytest.mark.parametrize("name", VARIANTS)
def test_loss_is_the_mean_of_both_ends_errors(descent, states, rollouts, name):
    """An end that the policy did not see is left out of its mean; without any the loss is half the other's."""
    bonus, state = VARIANTS[name], states(0)[name]
    weights, r = Weights(state.learner), plain(rollouts[1])
    batch = bonus.examples(state, rollouts[1], (), KEY)
    assert isinstance(batch, Seen)
    pairs = [errors(weights, r, t, n, name == "own") for t, n in places(r)]
    before = np.mean([pair[0] for pair in pairs])
    after = [pair[1] for pair in pairs if pair[1] is not None]
    assert len(after) == (STEPS * ENVS if name == "own" else (~r.done).sum())
    (loss, metrics), grads = descent(bonus, state.learner, batch)
    np.testing.assert_allclose(loss, (before + np.mean(after)) / 2, rtol=2e-5)
    assert metrics == {}
    for part, grad in grads.items():
        zero = part in ("fixed", "fixed_trunk")
        assert all((np.asarray(leaf) == 0).all() == zero for leaf in jax.tree.leaves(grad)), part

    (loss, _), grads = descent(bonus, state.learner, batch._replace(known=jnp.zeros_like(batch.known)))
    np.testing.assert_allclose(loss, before / 2, rtol=2e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_which_fields_it_reads():
    assert POLICY.needs == {"features"}
    assert OWN.needs == frozenset()
