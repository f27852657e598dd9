import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etd.bonuses import energies

EXACT = {
    "ascent": lambda x, y: np.maximum(x - y, 0).max(-1),
    "euclidean": lambda x, y: np.sqrt(((x - y) ** 2).sum(-1) + 1e-8),
    "mrn": lambda x, y: EXACT["ascent"](x[..., :4], y[..., :4]) + EXACT["euclidean"](x[..., 4:], y[..., 4:]),
    "mrn_symmetric": lambda x, y: EXACT["euclidean"](x[..., 4:], y[..., 4:]),
    "cosine": lambda x, y: -(x * y).sum(-1) / np.sqrt((x**2).sum(-1) * (y**2).sum(-1)),
    "dot": lambda x, y: -(x * y).sum(-1),
}


@pytest.fixture(scope="module")
def points():
    x, y = np.random.default_rng(0).normal(size=(2, 12, 8)).astype(np.float32) * 2
    y[:3] = x[:3]  # some meet exactly
    y[3] = x[3] + np.float32(0.5)  # no coordinate ascends
    return x[:10], y


@pytest.fixture(scope="module")
def tables(quick, points):
    return quick(lambda x, y: {name: getattr(energies, name)(x, y) for name in EXACT})(*points)


@pytest.mark.parametrize("name", EXACT)
def test_against_numpy(tables, points, name):
    x, y = (p.astype(np.float64) for p in points)
    assert tables[name].shape == (10, 12)
    np.testing.assert_allclose(tables[name], EXACT[name](x[:, None], y[None]), rtol=1e-5, atol=1e-6)


def test_mrn_by_hand():
    x = jnp.array([[3.0, 1.0, 0.0, 3.0]])
    y = jnp.array([[1.0, 2.0, 4.0, 0.0]])
    np.testing.assert_allclose(energies.mrn(x, y), [[2 + 5]], rtol=1e-6)  # 3 - 1 rises most; sides 4 and 3
    np.testing.assert_allclose(energies.mrn(y, x), [[1 + 5]], rtol=1e-6)  # 2 - 1


def test_floor_is_exact_and_never_undercut(tables, points):
    for name in ("euclidean", "mrn", "mrn_symmetric"):
        d = np.asarray(tables[name])
        np.testing.assert_allclose(d[[0, 1, 2], [0, 1, 2]], 1e-4, rtol=1e-5)
        assert d.min() >= np.float32(0.99999e-4)
    np.testing.assert_array_equal(np.asarray(tables["ascent"])[[0, 1, 2, 3], [0, 1, 2, 3]], 0)


def test_mrn_is_a_quasimetric(quick, rng):
    z = (rng.normal(size=(40, 8)) * np.geomspace(1e-3, 10, 40)[:, None]).astype(np.float32)
    d = np.asarray(quick(energies.mrn)(z, z))
    through = (d[:, :, None] + d[None, :, :]).min(1)  # the best way from i to k over any j
    assert (d <= through * (1 + 1e-5)).all()
    assert np.abs(d - d.T).max() > 0.5
    symmetric = np.asarray(quick(energies.mrn_symmetric)(z, z))
    np.testing.assert_allclose(symmetric, symmetric.T, rtol=1e-6)


def naive_ascent(x, y):
    return jnp.max(jax.nn.relu(x[:, None] - y[None]), -1)


def naive_euclidean(x, y):
    return jnp.sqrt(jnp.square(x[:, None] - y[None]).sum(-1) + 1e-8)


@pytest.mark.parametrize("name", ["ascent", "euclidean"])
def test_custom_gradients(quick, rng, points, name):
    naive = {"ascent": naive_ascent, "euclidean": naive_euclidean}[name]
    x, y = points
    y = y + rng.uniform(0.01, 0.1, y.shape).astype(np.float32)  # none meet: at a tie any subgradient is right
    pull = rng.normal(size=(10, 12)).astype(np.float32)

    def gradients(function):
        return jax.vjp(function, x, y)[1](pull)

    ours, reference = quick(lambda: (gradients(getattr(energies, name)), gradients(naive)))()
    for a, b in zip(ours, reference, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max())


def test_an_accelerator_has_the_gradient_of_a_cpu(quick, rng):
    x, y = (rng.integers(0, 4, (5, count)).astype(np.float32) for count in (10, 12))  # with ties
    top = np.maximum(x[:, :, None] - y[:, None], 0).max(0)
    grad = rng.normal(size=top.shape).astype(np.float32)
    ways = (energies._pulls_at_once, energies._pulls_one_by_one)
    for a, b in zip(*(quick(way)(x, y, top, grad) for way in ways), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("name", ["ascent", "euclidean", "mrn"])
def test_equal_embeddings_pull_nowhere(quick, points, name):
    x = points[0][:1]
    for gradient in quick(jax.grad(lambda x, y: getattr(energies, name)(x, y).sum(), (0, 1)))(x, x):
        np.testing.assert_array_equal(gradient, 0)


def gradient_error(quick, distinct, scale):
    """Of the forward loss through ``euclidean``, relative to float64, in a minibatch that repeats embeddings."""
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(distinct, 32)) * scale).astype(np.float32)[rng.integers(distinct, size=(2, 64))]
    ours = quick(jax.grad(lambda x, y: energies.forward(-energies.euclidean(x, y)), (0, 1)))(x, y)
    away = x[:, None].astype(np.float64) - y
    d = np.sqrt((away**2).sum(-1) + 1e-8)
    share = np.exp(-d) / np.exp(-d).sum(1, keepdims=True)
    pulls = ((np.eye(64) - share) / 64 / d)[:, :, None] * away
    exact = pulls.sum(1), -pulls.sum(0)
    return max(np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(ours, exact, strict=True))


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_gradient_where_embeddings_meet(quick, scale):
    """Grids repeat observations, so many pairs of a minibatch lie at the floor, where 1/d is 10,000."""
    assert gradient_error(quick, 8, scale) < 1e-4


@pytest.mark.gpu
def test_gradient_where_embeddings_meet_at_low_precision():
    with jax.default_matmul_precision("tensorfloat32"):
        assert gradient_error(jax.jit, 8, 1.0) < 1e-2


def test_losses_at_their_ends(quick):
    def run():
        uniform, perfect = jnp.zeros((6, 6)), 100.0 * jnp.eye(6)
        return [[loss(uniform), loss(perfect)] for loss in energies.LOSSES.values()]

    for at_uniform, at_perfect in quick(run)():
        np.testing.assert_allclose(at_uniform, math.log(6), rtol=1e-6)
        np.testing.assert_allclose(at_perfect, 0, atol=1e-6)


def test_directions_by_hand(quick):
    logits = np.log(np.array([[1, 1, 1], [5, 1, 1], [5, 1, 1]], np.float32))
    # Rows sum to 3, 7, 7 and columns to 11, 3, 3, over a diagonal of ones.
    by_row, by_column = (math.log(3) + 2 * math.log(7)) / 3, (math.log(11) + 2 * math.log(3)) / 3
    known = {"forward": by_row, "backward": by_column, "symmetric": (by_row + by_column) / 2}
    values = quick(lambda x: {name: loss(x) for name, loss in energies.LOSSES.items()})(logits)
    for name, value in values.items():
        np.testing.assert_allclose(value, known[name], rtol=1e-6)


def test_optimum_on_a_chain(quick):
    """Over all minibatches of pairs from a chain, f = log p(y|x)/p(y) is where every loss has no slope."""
    walk = np.array([[0.1, 0.8, 0.1], [0.3, 0.2, 0.5], [0.6, 0.0, 0.4]])
    discount = 0.6
    future = 0.4 * walk @ np.linalg.inv(np.eye(3) - discount * walk)  # p(y|x): geometric number of steps, at least 1
    start = np.array([0.5, 0.3, 0.2])
    joint = start[:, None] * future
    best = np.log(future / joint.sum(0))

    pairs = np.array([(x, y) for x in range(3) for y in range(3)])
    batches = np.array(np.meshgrid(*[np.arange(9)] * 3)).reshape(3, -1).T  # [729, 3] three pairs each
    x, y = pairs[batches, 0], pairs[batches, 1]
    weight = joint[x, y].prod(1)

    def expected(loss):
        def of(table):
            logits = table[x[:, :, None], y[:, None, :]]
            return (jax.vmap(loss)(logits) * weight).sum()

        return jax.value_and_grad(of)

    tables = jnp.asarray(best + 2.5, jnp.float32)  # a constant does not matter
    values = quick(lambda table: {name: expected(loss)(table) for name, loss in energies.LOSSES.items()})(tables)
    ratio = np.exp(best)[x[:, :, None], y[:, None, :]]  # [729, i, j]
    diagonal = np.diagonal(ratio, 0, 1, 2)
    forward = (weight * np.log(ratio.sum(2) / diagonal).mean(1)).sum()
    backward = (weight * np.log(ratio.sum(1) / diagonal).mean(1)).sum()
    known = {"forward": forward, "backward": backward, "symmetric": (forward + backward) / 2}
    for name, (value, slope) in values.items():
        np.testing.assert_allclose(value, known[name], rtol=1e-5)
        np.testing.assert_allclose(slope, 0, atol=1e-6)
        assert value < math.log(3)
    off = quick(lambda table: expected(energies.symmetric)(table))(tables.at[0, 1].add(0.5))
    assert off[0] > values["symmetric"][0] + 1e-3


@pytest.mark.parametrize("name", energies.AGGREGATES)
def test_aggregates_against_numpy(quick, rng, name):
    distance = rng.exponential(size=(40, 9)).astype(np.float32)
    stored = rng.random((40, 9)) < 0.6
    for column, few in enumerate([1, 2, 5, 10, 11]):  # at 11 the quantile falls on an entry
        stored[:, column] = False
        stored[rng.choice(40, few, replace=False), column] = True
    expected = []
    for column in range(9):
        d = np.sort(distance[stored[:, column], column].astype(np.float64))
        one = {
            "min": d[0],
            "quantile10": np.quantile(d, 0.1),
            "knn10": d[min(9, len(d) - 1)],
            "knn10avg": d[:10].mean(),
        }
        expected.append(one[name])
    out = quick(energies.AGGREGATES[name])(distance, stored)
    np.testing.assert_allclose(out, expected, rtol=1e-5)
    few = quick(energies.AGGREGATES[name])(distance[:4], np.ones((4, 9), bool))  # fewer candidates than neighbours
    assert np.isfinite(few).all()
