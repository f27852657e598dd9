import math

import jax
import jax.numpy as jnp
import numpy as np

from etd.core.types import Box, Discrete
from etd.nets.heads import Categorical, Gaussian, action_noise


def test_categorical_by_hand():
    policy = Categorical(jnp.log(jnp.array([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]])) + 3.0)  # a shift changes nothing
    log_prob = policy.log_prob(jnp.array([2, 0]))
    np.testing.assert_allclose(log_prob, [math.log(0.25), math.log(0.8)], rtol=1e-6)
    entropy = [1.5 * math.log(2), -0.8 * math.log(0.8) - 0.2 * math.log(0.1)]
    np.testing.assert_allclose(policy.entropy(), entropy, rtol=1e-6)


def test_gaussian_by_hand():
    policy = Gaussian(jnp.array([[1.0, -2.0]]), jnp.log(jnp.array([2.0, 0.5])))
    # z = (1, 2): -1/2 - log 2 - log sqrt(2 pi)  and  -2 + log 2 - log sqrt(2 pi)
    np.testing.assert_allclose(policy.log_prob(jnp.array([[3.0, -1.0]])), [-2.5 - math.log(2 * math.pi)], rtol=1e-6)
    np.testing.assert_allclose(policy.entropy(), [math.log(2 * math.pi * math.e)], rtol=1e-6)  # log 2 + log 1/2 = 0
    np.testing.assert_allclose(policy.sample(jnp.array([[1.0, -1.0]])), [[3.0, -2.5]], rtol=1e-6)
    np.testing.assert_array_equal(policy.sample(jnp.zeros((1, 2))), policy.logits)


def test_samples_follow_the_distribution(quick):
    draws = 20_000
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])

    @quick
    def run(key):
        discrete = Categorical(jnp.log(jnp.asarray(probabilities, jnp.float32)))
        real = Gaussian(jnp.array([1.0]), jnp.log(jnp.array([0.5])))
        noise = [action_noise(key, space, (draws,)) for space in (Discrete(4), Box(1, -1.0, 1.0))]
        return discrete.sample(noise[0]), real.sample(noise[1])

    actions, reals = run(jax.random.key(0))
    expected = probabilities * draws
    chi_square = ((np.bincount(actions, minlength=4) - expected) ** 2 / expected).sum()
    assert chi_square < 16.3  # 0.999 quantile, 3 degrees of freedom
    assert abs(reals.mean() - 1.0) < 4 * 0.5 / math.sqrt(draws)
    assert abs(reals.std() / 0.5 - 1) < 4 / math.sqrt(2 * draws)
