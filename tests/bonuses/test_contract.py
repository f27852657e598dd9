"""What every bonus promises, whatever its formula; one suite over the registry."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from episodes import drifting
from oracle import ACTIONS, BOX_SPEC, ENVS, FEATURES, KEY, LATENT, SPEC, STEPS

from etd.bonuses import BONUSES, LearnedBonus, agac, ec, etd, ngu, rnd
from etd.bonuses.discriminator import Trace
from etd.bonuses.ec import Landmarks
from etd.bonuses.memory import Memory
from etd.bonuses.mixture import parse
from etd.bonuses.ngu import Scale
from etd.bonuses.representations import Move, RecurrentBonus
from etd.core.moments import RunningMoments
from etd.core.types import Box, Discrete, EnvSpec
from etd.lab.runs.store import Run
from etd.nets.cells import CELLS
from etd.training import presets

# The norm is BatchNorm, through which a bonus could see other rows; the other sizes make memories and queues overflow.
# A bias in front of a BatchNorm has no gradient but rounding, of which Adam makes steps: small ones, to compare states.
SIZES = {"features": FEATURES, "latent": LATENT, "epochs": 2, "minibatch": 10, "queue": 20, "capacity": 3}
SIZES |= {"near": 2, "far": 4, "threshold": 0.496, "learning_rate": 1e-5}

every_bonus = pytest.mark.parametrize("name", BONUSES)
RECURRENT = ["icm with lstm", "e3b with gru", "inverse with gru", "discriminator with lstm", "deir with none"]
"""bonuses with another cell than their own, like the one that is always tested"""
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in RECURRENT]
every_memory = pytest.mark.parametrize("name", [*BONUSES, "ngu with gru", *SLOW])


def small(name, **more):
    name, _, cell = name.partition(" with ")
    if cell:
        return replace(small(name, **more), cell=CELLS[cell]())
    if name == "mixture":
        return parse("etd + 0.5*rnd*count", lambda part: small(part, **more))
    known = {field.name for field in fields(BONUSES[name])}
    sizes = {key: value for key, value in {**SIZES, **more}.items() if key in known}
    return BONUSES[name](**sizes, **({"embedding": 8} if name == "etd" else {}))


def advance(bonus, state, rollout, key=KEY):
    """The state after scoring, the score, and state and metrics after learning."""
    after, scored = bonus.score(state, rollout, key)
    return after, scored, *bonus.improve(after, rollout, scored.trace, key)


@pytest.fixture(scope="module")
def rollouts(rollouts):
    """In NumPy, where cutting and changing them compiles nothing."""
    return [jax.tree.map(np.asarray, rollout) for rollout in rollouts]


@pytest.fixture(scope="module")
def begin(quick):
    """The first state of a bonus by its name, compiled once."""

    @cache
    def compiled(name):
        return quick(lambda key: small(name).init(key, SPEC, ENVS))

    return lambda name, key=KEY: compiled(name)(key)


@pytest.fixture(scope="module")
def step(quick):
    """``advance`` of a bonus by its name, compiled once for each length of rollout."""

    @cache
    def compiled(name):
        return quick(lambda state, rollout, key: advance(small(name), state, rollout, key))

    return lambda name, state, rollout, key=KEY: compiled(name)(state, rollout, key)


def contents(tree):
    """A state without the unused slots of its memories."""

    def used(leaf):
        if isinstance(leaf, Memory | Landmarks):
            rows = [np.asarray(leaf.values)[n, :count] for n, count in enumerate(leaf.filled)]
            return {"rows": rows, "counts": [np.asarray(part) for part in leaf[1:]]}
        return np.asarray(leaf)

    return jax.tree.map(used, tree, is_leaf=lambda leaf: isinstance(leaf, Memory | Landmarks))


def of_environment(tree, n):
    """The contents of one environment's memory."""
    return jax.tree.map(lambda leaf: leaf[n], tree, is_leaf=lambda leaf: isinstance(leaf, list | np.ndarray))


def same(ours, theirs, rtol=0.0, atol=0.0):
    def compare(a, b):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)

    jax.tree.map(compare, contents(ours), contents(theirs))


def differs(ours, theirs):
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return any((np.asarray(a) != np.asarray(b)).any() for a, b in pairs)


def cut(rollout, t):
    """Step t alone."""
    pair, one = slice(t, t + 2), slice(t, t + 1)
    return rollout._replace(
        obs=rollout.obs[pair],
        step=jax.tree.map(lambda leaf: leaf[one], rollout.step),
        action=rollout.action[one],
        log_prob=rollout.log_prob[one],
        value=rollout.value[pair],
        hidden=rollout.hidden[pair],
        features=rollout.features[pair],
        logits=rollout.logits[one],
    )


# Scoring ---------------------------------------------------------------------------------------------------------


@every_memory
def test_one_step_at_a_time_equals_all_at_once(quick, begin, step, rollouts, name):
    single = quick(lambda state, rollout: small(name).score(state, rollout, KEY))
    whole = parts = begin(name)
    for rollout in rollouts:
        whole, scored, _, _ = step(name, whole, rollout)
        bonus = []
        for t in range(STEPS):
            parts, one = single(parts, cut(rollout, t))
            bonus.append(one.bonus[0])
        np.testing.assert_allclose(bonus, scored.bonus, rtol=1e-5, atol=1e-6)
        same((parts.memory, parts.extra), (whole.memory, whole.extra), rtol=1e-5, atol=1e-6)


def changed(rollout, n, until=STEPS, start=0):
    """Everything different in environment n at the steps before ``until``, or from ``start``: one observation
    throughout, other actions, features and logits."""
    rows = slice(start, until if until < STEPS else None)  # with the last, which opens the next episode if one ended
    rollout = jax.tree.map(np.copy, rollout)
    rollout.obs[rows, n] = rollout.next_obs[rows, n] = 0.5
    rollout.action[rows, n] = (rollout.action[rows, n] + 1) % ACTIONS
    rollout.features[rows, n] *= -2
    rollout.logits[rows, n] *= -2
    return rollout


def settled(state):
    """NGU measures novelty against running statistics of the whole run, so there every environment has a say in every
    bonus: by design. With a past of 10^12 samples, beside which a rollout is nothing in float32, they stand still."""
    if not isinstance(state.extra, Scale):
        return state
    many = jnp.float32(1e12)
    return state._replace(extra=Scale(RunningMoments(many, jnp.float32(0), many), many, many))


@every_memory
@pytest.mark.parametrize("n", range(1, ENVS))  # environment 0 ends but once
def test_no_leak_over_an_episodes_end_or_between_environments(begin, step, rollouts, name, n):
    """What an environment saw in all rollouts until its last end in this one changes nothing after it, in this rollout
    and the next; what it sees after an end changes nothing before it; and neither changes anything in the others."""
    others = np.arange(ENVS) != n
    state = state_too = settled(begin(name))
    before, after = False, False
    for k, rollout in enumerate(rollouts):
        ends = np.flatnonzero(rollout.done[:, n])
        moved, scored, _, _ = step(name, state, rollout)
        if len(ends):
            end = ends[-1] + 1
            moved_too, scored_too, _, _ = step(name, state_too, changed(rollout, n, until=end))
            a, b = np.asarray(scored.bonus), np.asarray(scored_too.bonus)
            np.testing.assert_allclose(a[end:, n], b[end:, n], rtol=1e-6)
            np.testing.assert_allclose(a[:, others], b[:, others], rtol=1e-6)
            following = rollouts[(k + 1) % len(rollouts)]
            later, later_too = step(name, moved, following)[1], step(name, moved_too, following)[1]
            np.testing.assert_allclose(later.bonus, later_too.bonus, rtol=1e-6)
            same((moved.memory, moved.extra), (moved_too.memory, moved_too.extra), rtol=1e-6, atol=1e-6)
            before |= (a[:end, n] != b[:end, n]).any()

            c = np.asarray(step(name, state, changed(rollout, n, start=ends[0] + 1))[1].bonus)
            np.testing.assert_allclose(a[: ends[0] + 1, n], c[: ends[0] + 1, n], rtol=1e-6)
            np.testing.assert_allclose(a[:, others], c[:, others], rtol=1e-6)
            after |= (a != c).any()
        state, state_too = moved, step(name, state_too, changed(rollout, n))[0]
    # The changes were not in vain. NovelD pays nothing for a last step, and environment 3 takes no other.
    assert before == after == (name != "none" and (name, n) != ("noveld", 3))


@every_bonus
def test_scoring_never_changes_the_model(begin, step, rollouts, name):
    state = begin(name)
    for rollout in rollouts:
        after, _, learned, _ = step(name, state, rollout)
        same(after.learner, state.learner)
        assert differs(learned.learner, after.learner) == (name not in ("none", "count"))
        state = learned


@every_bonus
def test_bonus_and_metrics_are_finite_numbers(begin, step, rollouts, name):
    state = begin(name)
    for rollout in rollouts:
        _, scored, state, metrics = step(name, state, rollout)
        assert scored.bonus.shape == (STEPS, ENVS)
        assert scored.bonus.dtype == jnp.float32
        for leaf in jax.tree.leaves((scored, state, metrics)):
            assert np.isfinite(leaf).all()
        assert all(value.shape == () for value in (scored.metrics | metrics).values())


# Seeds and resuming ----------------------------------------------------------------------------------------------


@every_bonus
def test_two_seeds_together_equal_each_alone(quick, begin, step, rollouts, name):
    """Each with rollouts of its own. Batched matrix products round otherwise: weights agree to one step of Adam, of
    which they made twelve. No state returns, for between two embeddings of one state, equal but for rounding, rounding
    decides which coordinate attains MRN's maximum and is moved by ETD's gradient.
    """
    rollouts = drifting(rollouts)

    def both(key, rollouts):
        def one(state, rollout):
            _, scored, state, _ = advance(small(name), state, rollout)
            return state, scored.bonus

        return jax.lax.scan(one, small(name).init(key, SPEC, ENVS), rollouts)

    keys = jax.random.split(KEY, 2)
    series = [rollouts[:2], rollouts[1:]]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *[r for rollouts in series for r in rollouts])
    stacked = jax.tree.map(lambda leaf: leaf.reshape(2, 2, *leaf.shape[1:]), stacked)
    states, bonuses = quick(jax.vmap(both))(keys, stacked)
    for seed in range(2):
        state = begin(name, keys[seed])
        for k, rollout in enumerate(series[seed]):
            _, scored, state, _ = step(name, state, rollout)
            np.testing.assert_allclose(bonuses[seed, k], scored.bonus, rtol=3e-4, atol=2e-6)
        same(jax.tree.map(lambda leaf, seed=seed: leaf[seed], states), state, rtol=2e-5, atol=1e-5)
    assert name in ("none", "count") or differs(bonuses[0, 1], bonuses[1, 0])  # of one rollout


@every_memory
def test_resuming_from_a_checkpoint_is_bit_exact(begin, step, rollouts, tmp_path, name):
    state, key = begin(name), jax.random.key(1)
    for rollout in rollouts[:2]:
        state = step(name, state, rollout)[2]
    run = Run.create(tmp_path, presets.choose("MiniGrid-Empty-5x5-v0", "etd"))
    run.save((state, key), 2)
    shapes = jax.eval_shape(lambda key: (small(name).init(key, SPEC, ENVS), key), KEY)
    (restored, restored_key), _, complaints = Run.open(tmp_path).load(shapes)
    assert not complaints
    jax.tree.map(np.testing.assert_array_equal, restored, state)
    ours, theirs = step(name, restored, rollouts[2], restored_key), step(name, state, rollouts[2], key)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


# Examples --------------------------------------------------------------------------------------------------------

LONG = 12


@pytest.fixture(scope="module")
def named(rollout_of):
    """Observations, and in their first numbers features and logits, name (environment, episode, time)."""
    done = np.zeros((LONG, ENVS), bool)
    done[[0, 6], 1] = done[LONG - 1, 2] = done[:, 3] = done[[8, 9], 4] = True
    episode = np.cumsum(done, 0) - done
    time = np.broadcast_to(np.arange(LONG)[:, None], done.shape)
    env = np.broadcast_to(np.arange(ENVS), done.shape)
    obs, after = (np.stack([env, episode, time + shift], -1).astype(np.float32) for shift in (0, 1))
    seen_last = after[-1:] + np.array([0, 1, 0]) * done[-1:, :, None]  # the next episode's first, where one ended
    rollout = rollout_of(obs, done, after)._replace(obs=jnp.concatenate([obs, seen_last]).astype(jnp.float32))
    features = jnp.pad(rollout.obs, ((0, 0), (0, 0), (0, FEATURES - 3)))
    return rollout._replace(action=jnp.asarray(time % ACTIONS), features=features, logits=jnp.asarray(obs))


def both_ends(example):
    """The two states that an example pairs, and which examples count; None if it has but one state."""
    if isinstance(example, ngu.NGUExample):
        return both_ends(example.move)
    always = np.ones(jax.tree.leaves(example)[0].shape[:2], bool)
    if isinstance(example, etd.Pair | agac.Acted):
        return (*map(np.asarray, example), always)
    if isinstance(example, Move):
        return np.asarray(example.obs), np.asarray(example.next_obs), always
    if isinstance(example, ec.LabelledPair):
        return np.asarray(example.first), np.asarray(example.second), always  # also those that are not valid
    if isinstance(example, rnd.Seen):
        return np.asarray(example.present), np.asarray(example.after), np.asarray(example.known)
    assert isinstance(example, jax.Array)
    return None


@pytest.fixture(scope="module")
def drawn(quick, named):
    """Examples [keys, T*N, ...] of a bonus by its name."""

    @cache
    def build(name):
        bonus = small(name)
        hidden = jnp.zeros((LONG, ENVS, bonus.cell.width(FEATURES) if isinstance(bonus, RecurrentBonus) else 0))
        trace = Trace(hidden, jnp.zeros((LONG, ENVS))) if name in ("deir", "discriminator") else hidden
        keys = jax.random.split(KEY, 300)
        return quick(jax.vmap(lambda key: bonus.examples(None, named, trace, key)))(keys)

    return build


@pytest.mark.parametrize("name", [name for name, kind in BONUSES.items() if issubclass(kind, LearnedBonus)])
def test_examples_never_pair_states_of_different_episodes(drawn, named, name):
    """Negatives drawn from a queue are another matter: they are to be of other episodes."""
    examples = drawn(name)
    assert {leaf.shape[:2] for leaf in jax.tree.leaves(examples)} == {(300, LONG * ENVS)}
    ends = both_ends(examples)
    if name == "rnd":
        assert ends is None
        np.testing.assert_array_equal(examples[0, :, :3], named.obs[:-1].reshape(-1, 3))
        return
    x, y, counts = ends
    np.testing.assert_array_equal(x[counts][:, :2], y[counts][:, :2])
    if isinstance(examples, Move | rnd.Seen | ngu.NGUExample):
        np.testing.assert_array_equal(y[counts][:, 2], x[counts][:, 2] + 1)
    if name == "ngu":
        np.testing.assert_array_equal(examples.seen[..., :3], x)
    expected = ~np.asarray(named.done) if name == "noveld" else np.ones((LONG, ENVS), bool)
    assert (counts == expected.reshape(-1)).all()
    present = {tuple(row) for row in np.concatenate([x[counts], y[counts]])[:, :3]}
    wanted = np.asarray(named.obs[:-1])[expected]
    assert {tuple(row) for row in wanted} <= present  # every state takes part


def test_curiosity_pairs_are_near_or_far_as_they_say(drawn):
    bonus, pairs = small("ec"), jax.tree.map(np.asarray, drawn("ec"))
    ahead = (pairs.second - pairs.first)[..., 2]
    apart = np.abs(ahead)
    near, far = pairs.near, ~pairs.near & pairs.valid
    assert set(apart[near]) == set(range(1, bonus.near + 1))
    assert set(apart[far]) == set(range(bonus.far + 1, LONG + 1))
    assert pairs.valid[near].all()
    for kind in (near, far):
        assert 0.4 < (ahead[kind] > 0).mean() < 0.6  # both orders
    assert 0.45 < near.mean() < 0.55
    # Where the episode goes on beyond ``far`` a far state is found, elsewhere none is claimed.
    start = np.minimum(pairs.first, pairs.second)
    lasts = {(0, 0): LONG, (1, 0): 1, (1, 1): 7, (1, 2): LONG, (2, 0): LONG, (4, 0): 9, (4, 1): 10, (4, 2): LONG}
    lasts |= {(3, t): t + 1 for t in range(LONG)}
    left = np.vectorize(lambda n, e, t: lasts[int(n), int(e)] - t)(*np.moveaxis(start[:20], -1, 0))
    np.testing.assert_array_equal((left > bonus.far)[far[:20]], True)
    np.testing.assert_array_equal((left <= bonus.far)[~pairs.valid[:20]], True)


# Other environments ----------------------------------------------------------------------------------------------


def environment(kind, action):
    shape, high = {"grid": ((7, 7, 3), 10.0), "pixels": ((64, 64, 3), 255.0)}[kind]
    return EnvSpec(kind, shape, "uint8", high, action, 5, 1, kind)


def tiny(rollout_of, spec):
    """Two steps of two environments, the first of which ends an episode at once."""
    rng = np.random.default_rng(0)
    obs, ends = rng.integers(0, 10, (2, 2, 2, *spec.obs_shape)).astype(spec.obs_dtype)
    rollout = rollout_of(obs, np.array([[True, False], [False, False]]), ends)
    action = rng.integers(0, ACTIONS, (2, 2)) if isinstance(spec.action, Discrete) else rng.normal(size=(2, 2, 2))
    return rollout._replace(
        action=jnp.asarray(action, jnp.int32 if isinstance(spec.action, Discrete) else jnp.float32),
        features=jnp.asarray(rng.normal(size=(3, 2, FEATURES)), jnp.float32),
        logits=jnp.asarray(rng.normal(size=(2, 2, ACTIONS)), jnp.float32),
    )


@every_bonus
def test_serves_grids_and_vector_actions(quick, rollout_of, name):
    """Both at once, which is one thing less to compile; a bonus that refuses vector actions is given a choice."""
    bonus = small(name, minibatch=2, epochs=1)
    refused = bonus.refusal(BOX_SPEC)
    assert bool(refused) == (name == "agac")
    assert not bonus.refusal(SPEC)
    spec = environment("grid", Discrete(ACTIONS) if refused else Box(2, -1.0, 1.0))
    start, (_, scored, state, metrics) = quick(
        lambda key, rollout: (start := bonus.init(key, spec, 2), advance(bonus, start, rollout))
    )(KEY, tiny(rollout_of, spec))
    assert scored.bonus.shape == (2, 2)
    for leaf in jax.tree.leaves((scored, state, metrics)):
        assert np.isfinite(leaf).all()
    assert differs(start.learner, state.learner) == (name not in ("none", "count"))


@every_bonus
def test_serves_pixels(rollout_of, name):
    """Traced only: one iteration gives a bonus [T, N] and a state just like the one before."""
    bonus, spec = small(name, minibatch=2, epochs=1), environment("pixels", Discrete(ACTIONS))
    start = jax.eval_shape(lambda key: bonus.init(key, spec, 2), KEY)
    _, scored, state, _ = jax.eval_shape(lambda *given: advance(bonus, *given), start, tiny(rollout_of, spec))
    assert scored.bonus.shape == (2, 2)
    assert jax.tree.structure(start) == jax.tree.structure(state)
    for before, after in zip(jax.tree.leaves(start), jax.tree.leaves(state), strict=True):
        assert (before.shape, before.dtype) == (after.shape, after.dtype)
