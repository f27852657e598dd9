"""Recurrent models: their embeddings by hand, over episodes that span rollouts."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import (
    ACTIONS,
    ENVS,
    FEATURES,
    KEY,
    SMALL,
    SPEC,
    STEPS,
    Weights,
    cross_entropy,
    places,
    plain,
    predicted,
)

from etd.bonuses import DEIR, E3B, ICM, NGU, Discriminator, Inverse, parse
from etd.bonuses.representations import Move
from etd.nets.cells import GRU, NoCell


@pytest.fixture(scope="module")
def state(fill):
    return lambda bonus, seed=0: fill(lambda key: bonus.init(key, SPEC, ENVS), seed, bound=0.25)


def followed(weights, r, hidden, prefix=""):
    """(before, present, after) of every step (t, n): the recurrent state before it and both embeddings. ``hidden``
    [N, F] moves on."""
    rows = {}
    for t, n in places(r):
        phi, after = (weights.trunk(f"{prefix}trunk", obs[t, n]) for obs in (r.obs, r.next_obs))
        before = hidden[n].copy()
        hidden[n] = weights.gru(f"{prefix}cell", phi, before)
        rows[t, n] = before, hidden[n].copy(), weights.gru(f"{prefix}cell", after, hidden[n])
        if r.done[t, n]:
            hidden[n] = 0
    return rows


def test_icm_predicts_recurrent_embeddings(quick, state, rollouts):
    """The weights change from rollout to rollout, the state goes on."""
    bonus = ICM(**SMALL, cell=GRU())
    score = quick(lambda state, rollout: bonus.score(state, rollout, KEY))
    current, hidden = state(bonus), np.zeros((ENVS, FEATURES))
    for k, rollout in enumerate(rollouts):
        current = current._replace(learner=state(bonus, k).learner)
        weights, r = Weights(current.learner), plain(rollout)
        current, scored = score(current, rollout)
        for (t, n), (before, present, after) in followed(weights, r, hidden).items():
            np.testing.assert_allclose(scored.trace[t, n], before, rtol=1e-4, atol=1e-6)
            error = ((predicted(weights, present, r.action[t, n]) - after) ** 2).sum() / 2
            np.testing.assert_allclose(scored.bonus[t, n], error, rtol=1e-4)
        np.testing.assert_allclose(current.memory.hidden, hidden, rtol=1e-4, atol=1e-6)
    assert np.abs(hidden).max() > 0.05


def test_ngu_remembers_recurrent_embeddings(quick, state, rollouts):
    bonus = NGU(**SMALL, cell=GRU())
    score = quick(lambda state, rollout: bonus.score(state, rollout, KEY))
    current, hidden, pasts = state(bonus), np.zeros((ENVS, FEATURES)), [[] for _ in range(ENVS)]
    weights = Weights(current.learner)
    for rollout in rollouts:
        r = plain(rollout)
        current, _ = score(current, rollout)
        for (t, n), (_, present, after) in followed(weights, r, hidden, "inverse/").items():
            pasts[n] = [] if r.done[t, n] else [*(pasts[n] or [present]), after]
        seen = current.memory.seen
        np.testing.assert_array_equal(seen.filled, [len(past) for past in pasts])
        for n, past in enumerate(pasts):
            if past:
                np.testing.assert_allclose(seen.values[n, : len(past)], past, rtol=1e-4, atol=1e-5)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("kind", [E3B, pytest.param(Inverse, marks=SLOW), pytest.param(Discriminator, marks=SLOW)])
def test_these_compare_the_trunks_embeddings_and_train_on_recurrent_ones(quick, state, rollouts, kind):
    """The bonus is that of the model without its cell; the cell gets a gradient, through both steps."""
    sizes = {**SMALL, **({"queue": 16} if kind is Discriminator else {})}
    bonus, without = kind(**sizes, cell=GRU()), kind(**sizes)
    ours = state(bonus)._replace(memory=bonus.init(KEY, SPEC, ENVS).memory)
    learner = ours.learner
    params = {name: part for name, part in learner.params.items() if name != "cell"}
    theirs = without.init(KEY, SPEC, ENVS)
    theirs = theirs._replace(learner=replace(theirs.learner, params=params))

    @quick
    def run(ours, theirs, rollout):
        after, scored = bonus.score(ours, rollout, KEY)
        rows = bonus.examples(after, rollout, scored.trace, KEY)

        def loss(params):
            return bonus.loss(replace(learner, params=params).net(), ours.extra, rows, KEY)[0]

        return after, scored, without.score(theirs, rollout, KEY), jax.grad(loss)(learner.params), rows

    for rollout in rollouts[:2]:
        ours, scored, (theirs, alone), grads, rows = run(ours, theirs, rollout)
        np.testing.assert_allclose(scored.bonus, alone.bonus, rtol=1e-5, atol=1e-6)
        jax.tree.map(np.testing.assert_array_equal, ours.memory.seen, theirs.memory)
        for leaf in jax.tree.leaves(grads["cell"]):
            assert np.asarray(leaf).any()
    assert rows.hidden.shape == (STEPS * ENVS, FEATURES)
    assert np.asarray(rows.hidden).any()


def test_training_takes_two_steps_from_the_stored_state(descent, state, rng):
    """The loss by hand, and its gradient through both steps by differences."""
    bonus = Inverse(**SMALL, cell=GRU())
    learner = state(bonus).learner
    obs, next_obs = rng.normal(size=(2, 4, 3)).astype(np.float32)
    action = rng.integers(ACTIONS, size=4)
    hidden = rng.uniform(-0.9, 0.9, (4, FEATURES)).astype(np.float32)
    (loss, _), grads = descent(bonus, learner, Move(obs, jnp.asarray(action), next_obs, hidden))
    weights = Weights(learner)

    def by_hand():
        losses = []
        for b in range(4):
            first = weights.gru("cell", weights.trunk("trunk", obs[b]), hidden[b].astype(np.float64))
            second = weights.gru("cell", weights.trunk("trunk", next_obs[b]), first)
            guess = weights.linear("guess", weights.block("hidden", np.concatenate([first, second])))
            losses.append(cross_entropy(guess, action[b]))
        return np.mean(losses)

    def slope(kernel, place, apart=1e-6):
        here, values = kernel[place], []
        for value in (here + apart, here - apart):
            kernel[place] = value
            values.append(by_hand())
        kernel[place] = here
        return (values[0] - values[1]) / (2 * apart)

    np.testing.assert_allclose(loss, by_hand(), rtol=1e-5)
    for name in ("inputs", "hidden"):
        kernel, found = weights(f"cell/{name}")["kernel"], grads["cell"][name]["kernel"]
        slopes = [slope(kernel, place) for place in np.ndindex(kernel.shape)]
        np.testing.assert_allclose(found.reshape(-1), slopes, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_recurrent_models_learn_side_by_side(quick, state, rollouts):
    """In a mixture every cell goes on in its own state, and changes as the rest of its model does."""
    sizes = {**SMALL, "epochs": 1, "minibatch": 10, "cell": GRU()}
    parts = {"icm": ICM(**sizes), "ngu": NGU(**sizes), "e3b": E3B(**sizes), "deir": DEIR(**sizes, queue=16)}
    mixed = parse("icm*ngu + e3b + deir", parts.__getitem__)

    @quick
    def advance(state, rollout):
        after, scored = mixed.score(state, rollout, KEY)
        return *mixed.improve(after, rollout, scored.trace, KEY), scored.bonus

    start = state(mixed)
    one, metrics, bonus = advance(start, rollouts[0])
    two, _, _ = advance(one, rollouts[1])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((one, two, metrics, bonus)))
    goes_on = ~np.asarray(rollouts[0].done[-1])
    for k, name in enumerate(parts):
        assert (np.asarray(one.memory[k].hidden).any(1) == goes_on).all(), name
        assert not np.array_equal(one.memory[k].hidden, two.memory[k].hidden), name
        before, after = (now.learner[k].params.get("inverse", now.learner[k].params)["cell"] for now in (start, one))
        moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), before, after)
        assert all(jax.tree.leaves(moved)), name


def test_without_a_cell_a_memory_is_what_it_was():
    """So that checkpoints of bonuses without a cell keep the names of their arrays."""
    for bonus in (ICM(**SMALL), Inverse(**SMALL), E3B(**SMALL)):
        assert isinstance(bonus.cell, NoCell)
        memory = jax.eval_shape(lambda key, bonus=bonus: bonus.init(key, SPEC, ENVS).memory, KEY)
        assert all(leaf.size for leaf in jax.tree.leaves(memory))
        assert not hasattr(memory, "hidden")
