import jax
import numpy as np
import pytest

from etd.core.moments import Moments, RunningMoments


def test_scalar_moments_by_hand():
    x = np.array([[1.0, 3.0], [5.0, 7.0]], np.float32)
    once = Moments.start().update(x, 0.9)
    # m = 0.1 * 4; squares about 0.4: 0.36, 6.76, 21.16, 43.56, mean 17.96; v = 0.9 + 1.796
    np.testing.assert_allclose(once.mean, 0.4, rtol=1e-6)
    np.testing.assert_allclose(once.var, 2.696, rtol=1e-6)
    twice = once.update(x, 0.9)
    # m = 0.36 + 0.4; squares about 0.76 have mean 15.4976; v = 0.9 * 2.696 + 1.54976
    np.testing.assert_allclose(twice.mean, 0.76, rtol=1e-6)
    np.testing.assert_allclose(twice.var, 3.97616, rtol=1e-6)


def test_mean_per_environment_but_one_variance():
    x = np.array([[1.0, 10.0], [3.0, 30.0]], np.float32)
    moments = Moments.start((2,)).update(x, 0.9)
    # m = 0.1 * (2, 20); squares about it: 0.64, 64, 7.84, 784, mean 214.12; v = 0.9 + 21.412
    np.testing.assert_allclose(moments.mean, [0.2, 2.0], rtol=1e-6)
    assert moments.var.shape == ()
    np.testing.assert_allclose(moments.var, 22.312, rtol=1e-6)
    standard = (x - [0.2, 2.0]) / (np.sqrt(22.312) + 1e-5)
    np.testing.assert_allclose(moments.standardise(x), standard, rtol=1e-6)


def test_constant_zero_stays_zero_while_the_variance_decays():
    moments = Moments.start()
    for _ in range(3):
        moments = moments.update(np.zeros((4, 2), np.float32), 0.5)
    np.testing.assert_allclose(moments.var, 0.125, rtol=1e-6)
    np.testing.assert_array_equal(moments.standardise(np.zeros(3, np.float32)), 0.0)


@pytest.fixture(scope="module")
def scanned(plainly):
    """A tally, the tallies after every step and the values standardised by those of their step."""

    def run(tally, x):
        after, steps = tally.scan(x)
        return after, steps, jax.vmap(RunningMoments.standardise)(steps, x)

    return plainly(run)


@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_tally_is_of_everything_so_far(scanned, rng, offset):
    """Step by step over three rollouts, also far from zero, where sums of squares would round away and the values
    themselves, and so their mean, round at 3e-5."""
    tally, past = RunningMoments.start(), []
    for _ in range(3):
        x = (offset + rng.normal(size=(5, 3)) * rng.uniform(0.1, 3, size=(5, 1))).astype(np.float32)
        tally, steps, standard = scanned(tally, x)
        for t in range(5):
            past += list(x[t].astype(np.float64))
            assert steps.samples[t] == len(past)
            np.testing.assert_allclose(steps.mean[t], np.mean(past), rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(steps.spread[t], np.var(past) * len(past), rtol=3e-5)
            expected = (x[t] - np.mean(past)) / (np.std(past) + 1e-5)
            np.testing.assert_allclose(standard[t], expected, rtol=1e-4, atol=1e-3 if offset else 1e-5)
        assert tally.samples == len(past)
        np.testing.assert_allclose(tally.mean, steps.mean[-1], rtol=0)
        np.testing.assert_allclose(tally.spread, steps.spread[-1], rtol=0)


def test_tally_of_nothing_and_of_one_value(scanned):
    """An empty tally only divides by the floor of its deviation; equal values are at the mean."""
    np.testing.assert_allclose(RunningMoments.start().standardise(np.float32(2e-5)), 2.0, rtol=1e-6)
    tally, _, standard = scanned(RunningMoments.start(), np.full((5, 3), 7.0, np.float32))
    assert (tally.samples, tally.mean, tally.spread) == (15, 7, 0)
    np.testing.assert_array_equal(standard, 0.0)
