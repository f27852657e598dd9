import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etd.agent.ppo import PPO, Examples
from etd.core.types import Box, Discrete, EnvSpec
from etd.nets.model import descend

GRID = EnvSpec("grid", (7, 7, 3), "uint8", 255.0, Discrete(7), 100, 1, "grid")
VECTOR = EnvSpec("vector", (3,), "float32", 1.0, Discrete(7), 100, 1, "vector")
REAL = EnvSpec("real", (3,), "float32", 1.0, Box(2, -1.0, 1.0), 100, 1, "vector")


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.integers(11, size=(16, 7, 7, 3)), jnp.uint8), jnp.asarray(
        rng.uniform(-1, 1, (16, 8)), jnp.float32
    )


def test_first_policy_is_uniform_and_values_zero(quick, batch):
    obs, hidden = batch
    ppo = PPO(features=8, latent=8)

    @quick
    def run(key):
        grid = ppo.init(key, GRID).net()(obs, hidden)
        real = ppo.init(key, REAL).net()(obs[:, :3, 0, 0], hidden)
        return grid, real

    grid, real = run(jax.random.key(3))
    np.testing.assert_array_equal(jax.nn.softmax(grid.policy.logits), np.float32(1 / 7))
    np.testing.assert_array_equal(grid.value, 0)
    np.testing.assert_array_equal(real.policy.logits, 0)
    np.testing.assert_array_equal(real.policy.log_std, 0)
    np.testing.assert_array_equal(real.value, 0)
    assert np.asarray(grid.features).std() > 0.01  # only the heads are zero
    assert grid.hidden.shape == (16, 8)


@pytest.mark.parametrize(("norm", "same"), [("layer", True), ("batch", False)])
def test_ratio_in_the_first_minibatch(quick, fill, batch, norm, same):
    """1 unless BatchNorm tells acting from updating; each step acts alone, the update sees them together."""
    obs, hidden = batch
    ppo = PPO(features=8, latent=8, norm=norm)
    obs = obs[:, 0, 0] / 10
    learner = fill(lambda key: ppo.init(key, VECTOR))

    @quick
    def run(learner, action):
        net = learner.net()
        out = jax.lax.map(lambda one: net(one[0][None], one[1][None]), (obs, hidden))
        out = jax.tree.map(lambda leaf: leaf[:, 0], out)
        nothing = jnp.zeros(16)
        log_prob = jax.vmap(lambda policy, action: policy.log_prob(action))(out.policy, action)
        rows = Examples(obs, hidden, action, log_prob, nothing, nothing, nothing)
        return descend(learner, ppo.optimiser(), ppo.loss, rows, jax.random.key(0))[1], out.policy.logits

    metrics, logits = run(learner, jnp.arange(16) % 7)
    assert np.asarray(logits).std() > 0.1
    # kl is the mean of (r - 1) - log r, about (r - 1)^2 / 2
    assert (metrics["kl"] < 1e-9) == same
    assert not same or metrics["clip_fraction"] == 0
