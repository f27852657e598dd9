from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from etd.bonuses import ETD
from etd.bonuses.etd import Pair
from etd.core.types import Discrete, EnvSpec

LONGEST = 12
SPEC = EnvSpec("vector", (3,), "float32", 1.0, Discrete(2), LONGEST, 1, "vector")
SMALL = {"features": 6, "latent": 8, "embedding": 8, "norm": "layer"}
STEPS, ENVS = 6, 4  # a rollout is scored in blocks of 2 steps, the greatest divisor shared with 32
KEY = jax.random.key(0)


def numpy_distance(kind, x, y):
    """From every row of ``x`` to ``y``."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    ascent = np.maximum(x[:, :4] - y[:4], 0).max(1)
    norm = np.sqrt(((x[:, 4:] - y[4:]) ** 2).sum(1) + 1e-8)
    return {
        "mrn": ascent + norm,
        "symmetric": norm,
        "l2": np.sqrt(((x - y) ** 2).sum(1) + 1e-8),
        "cos": -(x @ y) / np.linalg.norm(x, axis=1) / np.linalg.norm(y),
        "dot": -(x @ y),
    }[kind]


# (variant, its distance, its aggregate)
VARIANTS = {
    "paper": (ETD(**SMALL), "mrn", np.min),
    "no potential": (ETD(**SMALL, energy="mrn"), "mrn", np.min),
    "symmetric": (ETD(**SMALL, symmetric=True), "symmetric", np.min),
    "l2": (ETD(**SMALL, energy="l2", aggregate="quantile10"), "l2", lambda d: np.quantile(d, 0.1)),
    "cos": (ETD(**SMALL, energy="cos", aggregate="knn10"), "cos", lambda d: np.sort(d)[min(9, len(d) - 1)]),
    "gap": (ETD(**SMALL, gap=3), "mrn", lambda d: d[: max(1, len(d) - 2)].min()),  # but the last two, oldest first
    "authors' endings": (ETD(**SMALL, ending="next"), "mrn", np.min),
    "dot": (ETD(**SMALL, energy="dot", aggregate="knn10avg"), "dot", lambda d: np.sort(d)[:10].mean()),
}
PAPER = VARIANTS["paper"][0]


@pytest.fixture(scope="module")
def score(quick):
    """All variants' scores of a rollout, from their states."""
    return quick(
        lambda states, rollout: {
            name: bonus.score(states[name], rollout, KEY) for name, (bonus, _, _) in VARIANTS.items()
        }
    )


@pytest.fixture(scope="module")
def states(fill):
    """Begin with weights of a number; the variants share them."""

    def build(seed):
        return {name: fill(lambda key, b=b: b.init(key, SPEC, ENVS), seed) for name, (b, _, _) in VARIANTS.items()}

    return build


@pytest.fixture(scope="module")
def rollouts(rollout_of):
    """Three in a row; every end lies where it hurts: none, in the middle, at both borders, always."""
    rng = np.random.default_rng(0)
    done = np.zeros((3 * STEPS, ENVS), bool)
    done[LONGEST - 1, 0] = True
    done[[2, 3, 9], 1] = True
    done[[0, STEPS - 1, STEPS, 2 * STEPS - 1], 2] = True
    done[:, 3] = True
    obs, ends = rng.normal(size=(2, 3 * STEPS, ENVS, 3)).astype(np.float32)
    obs[4, 1] = obs[5, 1]  # a state revisited within its episode
    out = []
    for k in range(3):
        rows = slice(k * STEPS, (k + 1) * STEPS)
        final = ends[rows].copy()
        if k < 2:  # what an unfinished episode sees next opens the next rollout
            final[-1] = np.where(done[rows][-1][:, None], final[-1], obs[(k + 1) * STEPS])
        out.append(rollout_of(obs[rows], done[rows], final))
    return out


def swap_learner(states, other):
    return {name: state._replace(learner=other[name].learner) for name, state in states.items()}


def test_bonus_is_the_distance_from_the_episodes_past(quick, score, states, rollouts):
    """Against the rule step by step, with embeddings of one observation at a time.

    The weights change from rollout to rollout: memory keeps the features of the time, the encoder is today's.
    """

    @quick
    def features(learner, obs):
        return jax.lax.map(lambda one: learner.net().trunk(one[None])[0], obs)

    @quick
    def encode(learner, rows):
        return jax.lax.map(lambda one: learner.net().encode(one[None])[0], rows)

    current = states(0)
    past = [[] for _ in range(ENVS)]
    for k, rollout in enumerate(rollouts):
        current = swap_learner(current, states(k))
        learner = current["paper"].learner
        results = score(current, rollout)
        flat = np.stack([rollout.obs[:-1], rollout.next_obs, rollout.obs[1:]]).reshape(-1, 3)
        embedded = np.asarray(features(learner, flat)).reshape(3, STEPS, ENVS, -1)
        for n in range(ENVS):
            for t in range(STEPS):
                if not past[n]:
                    past[n].append(embedded[0, t, n])
                rows = np.zeros((LONGEST + 3, 6), np.float32)
                rows[: len(past[n])], rows[-2:] = past[n], embedded[1:, t, n]
                z = np.asarray(encode(learner, rows))
                for name, (bonus, kind, aggregate) in VARIANTS.items():
                    successor = z[-2] if bonus.ending == "last" else z[-1]
                    expected = aggregate(numpy_distance(kind, z[: len(past[n])], successor))
                    np.testing.assert_allclose(results[name][1].bonus[t, n], expected, rtol=2e-4, atol=2e-6)
                past[n].append(embedded[1, t, n])
                if rollout.done[t, n]:
                    past[n] = []
        current = {name: result[0] for name, result in results.items()}
        np.testing.assert_array_equal(current["paper"].memory.filled, [len(p) for p in past])


def test_revisited_state_is_at_the_floor(score, states, rollouts):
    bonus = score(states(0), rollouts[0])["paper"][1].bonus
    np.testing.assert_allclose(bonus[4, 1], 1e-4, rtol=1e-3)
    assert np.delete(np.asarray(bonus).ravel(), 4 * ENVS + 1).min() > 1e-3


def test_scoring_changes_neither_learner_nor_rows_of_others(score, states, rollouts):
    before = states(0)
    results = score(before, rollouts[0])
    for name, (after, scored) in results.items():
        jax.tree.map(np.testing.assert_array_equal, after.learner, before[name].learner)
        assert scored.bonus.shape == (STEPS, ENVS)
        assert np.isfinite(scored.bonus).all()


def test_no_leak_over_an_episodes_end_or_between_environments(score, states, rollouts):
    """Environment 1 ends at steps 2 and 3: what it saw until then, and its true last states, change nothing after."""
    rollout = rollouts[0]
    step = rollout.step._replace(next_obs=rollout.next_obs.at[:4, 1].add(1.0))
    changed = rollout._replace(obs=rollout.obs.at[:4, 1].add(1.0), step=step)
    one, two = score(states(0), rollout), score(states(0), changed)
    for name in VARIANTS:
        a, b = np.asarray(one[name][1].bonus), np.asarray(two[name][1].bonus)
        np.testing.assert_allclose(a[4:, 1], b[4:, 1], rtol=1e-6)
        np.testing.assert_allclose(a[:, [0, 2, 3]], b[:, [0, 2, 3]], rtol=1e-6)
        assert (a[:4, 1] != b[:4, 1]).any()


def test_one_step_at_a_time_equals_all_at_once(quick, score, states, rollouts):
    single = quick(lambda state, rollout: PAPER.score(state, rollout, KEY))
    state = states(0)["paper"]
    whole = states(0)
    for rollout in rollouts:
        results = score(whole, rollout)
        whole = {name: result[0] for name, result in results.items()}
        for t in range(STEPS):
            slim = rollout._replace(
                obs=rollout.obs[t : t + 2], step=jax.tree.map(lambda leaf, t=t: leaf[t : t + 1], rollout.step)
            )
            state, scored = single(state, slim)
            np.testing.assert_allclose(scored.bonus[0], results["paper"][1].bonus[t], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(state.memory.filled, whole["paper"].memory.filled)
        for n, count in enumerate(state.memory.filled):
            ours, theirs = state.memory.values[n, :count], whole["paper"].memory.values[n, :count]
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_examples_pair_a_state_with_its_own_future(quick, states, rollout_of):
    """Observations name (environment, episode, step); the last state of an episode is among the futures."""
    done = np.zeros((8, ENVS), bool)
    done[[0, 4], 1] = done[7, 2] = done[:, 3] = True
    episode = np.cumsum(done, 0) - done
    time = np.broadcast_to(np.arange(8.0)[:, None], done.shape)
    env = np.broadcast_to(np.arange(ENVS), done.shape)
    obs, after = (np.stack([env, episode, time + shift], -1).astype(np.float32) for shift in (0, 1))
    rollout = rollout_of(obs, done, after)
    state = states(0)["paper"]
    keys = jax.random.split(KEY, 200)
    pairs = quick(jax.vmap(lambda key: PAPER.examples(state, rollout, (), key)))(keys)
    x, y = np.asarray(pairs.obs), np.asarray(pairs.future)
    np.testing.assert_array_equal(x, np.broadcast_to(obs.reshape(-1, 3), x.shape))  # every state once
    np.testing.assert_array_equal(x[..., :2], y[..., :2])
    assert (y[..., 2] > x[..., 2]).all()
    lasts = {(1, 0, 1), (1, 1, 5), (2, 0, 8), (3, 7, 8)}
    assert lasts <= {tuple(int(v) for v in row) for row in y.reshape(-1, 3)}


@pytest.mark.parametrize("objective", ["symmetric", "forward", "backward"])
def test_loss_is_infonce_of_potential_minus_distance(quick, states, rng, objective):
    bonus = ETD(**SMALL, objective=objective)
    obs, future = rng.normal(size=(2, 10, 3)).astype(np.float32)
    learner = states(0)["paper"].learner

    @quick
    def run():
        net = learner.net()
        x, y = (net.trunk(o) for o in (obs, future))
        return bonus.loss(net, (), Pair(obs, future), KEY), net.encode(x), net.encode(y), net.potential(y)

    (loss, metrics), x, y, potential = jax.tree.map(np.asarray, run())
    logits = potential - np.stack([numpy_distance("mrn", x, one) for one in y], 1)
    by_row = np.log(np.exp(logits).sum(1)) - np.diagonal(logits)
    by_column = np.log(np.exp(logits).sum(0)) - np.diagonal(logits)
    known = {"forward": by_row, "backward": by_column, "symmetric": (by_row + by_column) / 2}
    np.testing.assert_allclose(loss, known[objective].mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"], (logits.argmax(1) == np.arange(10)).mean(), rtol=1e-6)
    assert np.ptp(potential) > 0.1


def test_learned_distance_of_a_chain(quick, lively, rollout_of):
    """A walk with a drift to the right and walls at both ends: the exact distance is -log E discount^steps."""
    size, steps, envs, discount = 6, 64, 16, 0.8
    spec = EnvSpec("chain", (size,), "float32", 1.0, Discrete(2), 64, 1, "vector")
    bonus = ETD(
        features=32, latent=32, embedding=16, norm="none", discount=discount, learning_rate=2e-3, epochs=2,
        minibatch=128,
    )  # fmt: skip
    walk = np.zeros((size, size))
    for s in range(size):
        walk[s, min(s + 1, size - 1)] += 0.75
        walk[s, max(s - 1, 0)] += 0.25
    exact = np.zeros((size, size))
    for goal in range(size):  # z(s) = E discount^(steps to the goal), 1 at the goal
        others = [s for s in range(size) if s != goal]
        inner = np.eye(size - 1) - discount * walk[np.ix_(others, others)]
        exact[others, goal] = -np.log(np.linalg.solve(inner, discount * walk[others, goal]))

    rng = np.random.default_rng(0)
    rounds = []
    for _ in range(20):
        places = np.zeros((steps + 1, envs), int)
        places[0] = rng.integers(size, size=envs)
        for t in range(steps):
            right = rng.random(envs) < 0.75
            places[t + 1] = np.clip(places[t] + np.where(right, 1, -1), 0, size - 1)
        obs = np.eye(size, dtype=np.float32)[places]
        rounds.append(rollout_of(obs[:-1], np.zeros((steps, envs), bool), obs[1:]))

    state = quick(lambda key: bonus.init(key, spec, envs))(KEY)

    @lively
    def train(state, rounds):
        def one(state, now):
            rollout, key = now
            return bonus.improve(state, rollout, (), key)

        state, metrics = jax.lax.scan(one, state, (rounds, jax.random.split(KEY, 20)))
        net = state.learner.net()
        z = net.encode(net.trunk(jnp.eye(size)))
        return bonus.distance(z, z), metrics

    learned, metrics = train(state, jax.tree.map(lambda *leaves: jnp.stack(leaves), *rounds))
    different = ~np.eye(size, dtype=bool)
    learned = np.asarray(learned)
    assert stats.spearmanr(learned[different], exact[different]).statistic > 0.9
    uphill, downhill = learned[np.tril_indices(size, -1)], learned.T[np.tril_indices(size, -1)]
    assert (uphill > downhill).mean() > 0.9  # against the drift it is farther
    assert metrics["loss"][-1] < metrics["loss"][0]
