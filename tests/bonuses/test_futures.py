import jax
import numpy as np
import pytest
from scipy import stats

from etd.bonuses import futures

DONE = np.array(
    [  # one environment a row here: no end; first step; last step; both; two in a row; every step; random
        [0, 0, 0, 0, 0, 0],
        [1, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 1],
        [1, 0, 0, 0, 0, 1],
        [0, 0, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 1],
        [0, 1, 0, 0, 1, 0],
    ],
    bool,
).T
LEFT = np.array(
    [
        [6, 5, 4, 3, 2, 1],
        [1, 5, 4, 3, 2, 1],
        [6, 5, 4, 3, 2, 1],
        [1, 5, 4, 3, 2, 1],
        [3, 2, 1, 1, 2, 1],
        [1, 1, 1, 1, 1, 1],
        [2, 1, 3, 2, 1, 1],
    ]
).T


def test_steps_left_by_hand():
    np.testing.assert_array_equal(futures.steps_left(DONE), LEFT)


@pytest.mark.parametrize("discount", [0.0, 0.7, 0.99, 1.0])
def test_frequencies_and_borders(quick, discount):
    """Each step's k = 1, 2, ... within its episode as often as the formula says, and nothing beyond it."""
    draws = 4000
    keys = jax.random.split(jax.random.key(1), draws)
    ahead = np.asarray(quick(jax.vmap(lambda key: futures.sample(key, DONE, discount)))(keys))
    assert ahead.min() == 1
    assert (ahead <= LEFT).all()
    statistic, freedom = 0.0, 0
    for left in range(1, 7):
        k = np.arange(1, left + 1)
        mass = (k == 1).astype(float) if discount == 0 else discount ** (k - 1.0)
        expected = mass / mass.sum()
        for t, n in zip(*np.nonzero(left == LEFT), strict=True):
            counts = np.bincount(ahead[:, t, n], minlength=left + 1)[1:]
            possible = expected > 0
            assert (counts[~possible] == 0).all()
            wanted = expected[possible] * draws
            statistic += ((counts[possible] - wanted) ** 2 / wanted).sum()
            freedom += possible.sum() - 1
    if freedom:
        assert 0.001 < stats.chi2.sf(statistic, freedom) < 0.999
    assert (freedom > 0) == (discount > 0)


def test_long_limits_keep_their_shape(quick):
    """Far beyond the horizon the truncated law is the plain geometric one, mean 1 / (1 - discount)."""
    draws = 20_000
    limit = np.full(draws, 10_000, np.int32)
    k = np.asarray(quick(lambda key: futures.truncated_geometric(key, limit, 0.95))(jax.random.key(0)))
    deviation = np.sqrt(0.95) / 0.05
    assert abs(k.mean() - 20) < 4 * deviation / np.sqrt(draws)
    assert abs(k.std() / deviation - 1) < 0.05
    assert k.min() == 1
