import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from etd.nets.fit import adam, fit
from etd.nets.model import create


class Table(nnx.Module):
    """Parameters of a given shape and nothing else."""

    def __init__(self, **shapes):
        for name, shape in shapes.items():
            setattr(self, name, nnx.Param(jnp.ones(shape)))


def test_every_epoch_visits_every_example_once_in_a_new_order(quick):
    examples, minibatch, epochs = 12, 4, 3
    batches = epochs * examples // minibatch

    def write_row(grads, count, params=None):
        # Row ``count`` of the parameters receives the gradient: a one for every example of this minibatch.
        row = jnp.arange(batches)[:, None] == count
        return jax.tree.map(lambda g: jnp.where(row, g, 0), grads), count + 1

    recorder = optax.GradientTransformation(lambda params: jnp.zeros((), jnp.int32), write_row)

    def loss(net, batch, key):
        return net.seen[...][:, batch].sum(), {"size": jnp.float32(batch.shape[0]), "place": batch}

    @quick
    def run(key):
        learner = create(lambda: Table(seen=(batches, examples)), recorder, key)
        return fit(loss, recorder, learner, jnp.arange(examples), key, epochs, minibatch)

    learner, metrics = run(jax.random.key(0))
    seen = np.asarray(learner.params["seen"]) - 1
    assert metrics["size"] == minibatch
    assert metrics["place"] == (examples - 1) / 2  # the mean also of what is one number per example
    np.testing.assert_array_equal(seen.sum(1), minibatch)
    by_epoch = seen.reshape(epochs, -1, examples)
    np.testing.assert_array_equal(by_epoch.sum(1), 1)
    assert len({epoch.tobytes() for epoch in by_epoch}) == epochs


def test_clipped_adam_by_hand(quick, rng):
    x, y = rng.normal(size=(6, 3)), rng.normal(size=6)
    rate, largest = 0.1, 3e-5  # so small a norm that Adam's epsilon shows
    w, b = np.ones(3), np.ones(())
    moments = [[np.zeros(3), np.zeros(())], [np.zeros(3), np.zeros(())]]
    losses, norms = [], []
    for step in (1, 2):
        error = x @ w + b - y
        losses.append((error**2).mean())
        grads = [2 * x.T @ error / 6, 2 * error.mean()]
        norms.append(np.sqrt(sum((g**2).sum() for g in grads)))
        grads = [g * min(1, largest / norms[-1]) for g in grads]
        steps = []
        for i, g in enumerate(grads):
            moments[0][i] = 0.9 * moments[0][i] + 0.1 * g
            moments[1][i] = 0.999 * moments[1][i] + 0.001 * g**2
            mean, square = moments[0][i] / (1 - 0.9**step), moments[1][i] / (1 - 0.999**step)
            steps.append(rate * mean / (np.sqrt(square) + 1e-5))
        w, b = w - steps[0], b - steps[1]

    def loss(net, batch, key):
        x, y = batch
        return jnp.square(x @ net.w[...] + net.b[...] - y).mean(), {}

    @quick
    def run(key):
        optimiser = adam(rate, largest)
        learner = create(lambda: Table(w=(3,), b=()), optimiser, key)
        rows = (jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))
        return fit(loss, optimiser, learner, rows, key, epochs=2, minibatch=6)

    learner, metrics = run(jax.random.key(0))
    np.testing.assert_allclose(learner.params["w"], w, rtol=1e-5)
    np.testing.assert_allclose(learner.params["b"], b, rtol=1e-5)
    np.testing.assert_allclose(metrics["loss"], np.mean(losses), rtol=1e-5)
    np.testing.assert_allclose(metrics["grad_norm"], np.mean(norms), rtol=1e-5)  # before clipping
    kept = learner.opt[1][0]
    for name, mean, square in zip(("w", "b"), *moments, strict=True):
        np.testing.assert_allclose(kept.mu[name], mean, rtol=1e-5)
        np.testing.assert_allclose(kept.nu[name], square, rtol=1e-5)
