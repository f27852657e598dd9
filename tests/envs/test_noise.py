from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from etd.envs import Task


def test_noise_blurs_observations_and_nothing_else(quick):
    """The same level, rewards and states as without noise; observations off by N(0, sigma^2), fresh at every step."""
    clean, noisy = (Task("MiniGrid-DoorKey-5x5-v0", noise=noise).make() for noise in (0.0, 0.1))
    keys = jax.random.split(jax.random.key(0), 256)
    actions = jnp.arange(256) % 7

    def play(env):
        state, first = jax.vmap(env.reset)(keys)
        after, step = jax.vmap(env.step)(state, actions, jax.random.split(jax.random.key(1), 256))
        return state, first, after, step

    (state, first, after, step), (state_n, first_n, after_n, step_n) = quick(lambda: (play(clean), play(noisy)))()
    jax.tree.map(np.testing.assert_array_equal, (state, after), (state_n, after_n))
    np.testing.assert_array_equal(step.reward, step_n.reward)
    np.testing.assert_array_equal(step.fingerprint, step_n.fingerprint)
    assert noisy.spec.obs_dtype == "float32"
    errors = [np.asarray(first_n - first), np.asarray(step_n.next_obs - step.next_obs)]
    for error in errors:
        # 37,632 draws: the mean is within 5 standard errors of 0, the deviation within 2 % of sigma.
        assert abs(error.mean()) < 5 * 0.1 / np.sqrt(error.size)
        np.testing.assert_allclose(error.std(), 0.1, rtol=0.02)
        between = np.corrcoef(error.reshape(-1, error.shape[-1]).T)  # of the channels of 12,544 cells
        np.testing.assert_allclose(between, np.eye(len(between)), atol=0.05)
    assert abs(np.corrcoef(errors[0].ravel(), errors[1].ravel())[0, 1]) < 0.05
