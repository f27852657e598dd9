import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from etd.nets.blocks import Block, ConvBlock, Linear, Norm, batch_norm, conv, product, stored
from etd.nets.cells import GRU, LSTM
from etd.nets.model import create, descend
from etd.training.compiled import CODE

STILL = optax.sgd(0.0)


def of(build):
    """An ``init`` function of the module that ``build`` makes."""
    return lambda key: create(build, STILL, key)


@pytest.mark.parametrize("kind", ["int32", "uint8", "bool"])
def test_whole_numbers_are_read_as_floats(quick, rng, kind):
    """A kernel of fractions must not be rounded to the type of what it multiplies."""
    x = rng.integers(0, 2, (3, 5, 5, 2)).astype(kind)

    def run(x):
        linear, blocks = Linear(2, 4), [ConvBlock((5, 5, 2), 4, kernel, stride, "none") for kernel, stride in STRIDES]
        return linear(x), [block(x) for block in blocks]

    for ours, floats in zip(
        jax.tree.leaves(quick(run)(x)), jax.tree.leaves(quick(run)(x.astype("float32"))), strict=True
    ):
        np.testing.assert_array_equal(ours, floats)
        assert ours.dtype == np.float32
        assert len(np.unique(ours)) > 2


STRIDES = (2, 1), (3, 2)


@pytest.mark.parametrize("size", [2, 3])
def test_conv_is_the_convolution_with_its_gradients(quick, rng, size):
    x = rng.normal(size=(2, 3, 5, 4, 3)).astype(np.float32)  # two leading axes, a rectangle
    kernel = rng.normal(size=(size, size, 3, 6)).astype(np.float32)
    pull = rng.normal(size=(2, 3, 6 - size, 5 - size, 6)).astype(np.float32)

    def primitive(x, kernel):
        flat = x.reshape(-1, *x.shape[2:])
        y = jax.lax.conv_general_dilated(flat, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return y.reshape(*x.shape[:2], *y.shape[1:])

    def ours(x, kernel):
        return conv(x, kernel.reshape(-1, kernel.shape[-1]), size)

    def with_gradients(function):
        out, back = jax.vjp(function, x, kernel)
        return out, *back(pull)

    results, reference = quick(lambda: (with_gradients(ours), with_gradients(primitive)))()
    for a, b in zip(results, reference, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("outputs", [3, 7])  # narrower and wider than the input
def test_product_is_the_matrix_product_with_its_gradients(quick, rng, outputs):
    x, kernel, pull = (rng.normal(size=size).astype(np.float32) for size in ((2, 6, 5), (5, outputs), (2, 6, outputs)))
    out, back = quick(lambda: (product(x, kernel), jax.vjp(product, x, kernel)[1](pull)))()
    np.testing.assert_allclose(out, x @ kernel, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(back[0], pull @ kernel.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(back[1], np.einsum("abi,abo->io", x, pull), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="only there it matters")
def test_the_compiler_keeps_the_faster_of_two_products_for_a_gradient():
    x, kernel, pull = jnp.ones((64, 40)), jnp.ones((40, 8)), jnp.ones((64, 8))
    grad = jax.jit(lambda x, kernel, pull: jax.vjp(product, x, kernel)[1](pull)[1], compiler_options=CODE)
    text = grad.lower(x, kernel, pull).compile().as_text()
    assert re.search(r"f32\[8,40\]\S* dot\(", text)
    assert not re.search(r"f32\[40,8\]\S* dot\(", text)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 1, 1), (4, 2, 0), (3, 1, 0), (3, 2, 0)])
def test_conv_block_against_loops(quick, fill, rng, kernel, stride, padding):
    learner = fill(of(lambda: ConvBlock((6, 5, 2), 3, kernel, stride, "none", padding)))
    weight, bias = np.asarray(learner.params["kernel"]), np.asarray(learner.params["bias"])
    x = rng.normal(size=(2, 6, 5, 2)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (6, 5))
    expected = np.zeros((2, height, width, 3))
    for i in range(height):
        for j in range(width):
            patch = padded[:, i * stride : i * stride + kernel, j * stride : j * stride + kernel]
            expected[:, i, j] = np.tensordot(patch, weight, 3) + bias
    assert learner.net().shape == expected.shape[1:]
    out = quick(lambda: learner.net()(x))()
    np.testing.assert_allclose(out, np.maximum(expected, 0), rtol=1e-5, atol=1e-5)


def run_norm(quick, learner, first, second):
    """Outputs in training mode on two batches, the learner after them, and its output in eval mode on the first."""

    def loss(net, batch, key):
        out = net(batch)
        return out.sum(), {"out": out}

    @quick
    def run(learner):
        outs = []
        for batch in (first, second):
            learner, metrics = descend(learner, STILL, loss, batch, jax.random.key(0))
            outs.append(metrics["out"])
        return outs, learner, learner.net()(first)

    return run(learner)


@pytest.mark.parametrize("shape", [(5,), (4, 3, 5)])
def test_batch_norm(quick, fill, rng, shape):
    learner = fill(of(lambda: Norm("batch", shape)))
    weight, bias = np.asarray(learner.params["weight"]), np.asarray(learner.params["bias"])
    mean, var = np.asarray(learner.stats["mean"]), np.asarray(learner.stats["var"])
    batches = [(rng.normal(size=(6, *shape)) * 2 + k).astype(np.float32) for k in (1, 3)]
    outs, learner, evaluated = run_norm(quick, learner, *batches)
    for batch, out in zip(batches, outs, strict=True):
        rows = batch.reshape(-1, 5).astype(np.float64)
        expected = (batch - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-5) * weight + bias
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
        mean = 0.9 * mean + 0.1 * rows.mean(0)
        var = 0.9 * var + 0.1 * rows.var(0, ddof=1)
    np.testing.assert_allclose(learner.stats["mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(learner.stats["var"], var, rtol=1e-5)
    np.testing.assert_allclose(
        evaluated, (batches[0] - mean) / np.sqrt(var + 1e-5) * weight + bias, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("shape", [(5,), (4, 3, 5)])
def test_layer_norm_is_the_same_in_training_and_evaluation(quick, fill, rng, shape):
    learner = fill(of(lambda: Norm("layer", shape)))
    weight, bias = np.asarray(learner.params["weight"]), np.asarray(learner.params["bias"])
    assert weight.shape == shape  # one weight per entry, not per channel
    batches = [(rng.normal(size=(6, *shape)) * 2 + k).astype(np.float32) for k in (1, 3)]
    outs, learner, evaluated = run_norm(quick, learner, *batches)
    for batch, out in zip(batches, outs, strict=True):
        wide, axes = batch.astype(np.float64), tuple(range(1, batch.ndim))
        standard = (wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + 1e-5)
        np.testing.assert_allclose(out, standard * weight + bias, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(evaluated, outs[0], rtol=1e-6, atol=1e-6)
    assert not jax.tree.leaves(learner.stats)


def test_no_norm_is_the_identity(rng):
    batch = rng.normal(size=(6, 5)).astype(np.float32)
    np.testing.assert_array_equal(Norm("none", (5,))(batch), batch)


@pytest.mark.parametrize("kind", ["batch", "layer", "none"])
def test_an_offset_is_part_of_what_a_norm_sees(quick, fill, rng, kind):
    learner = fill(of(lambda: Norm(kind, (5,))))
    x = rng.normal(size=(6, 5)).astype(np.float32)
    offset = rng.normal(size=5).astype(np.float32)

    @quick
    def run(learner, offset):
        def loss(net, added, key):
            out = net(x + offset) if added else net(x, offset)
            return out.sum(), {"out": out}

        def after(added):
            trained, metrics = descend(learner, STILL, loss, added, jax.random.key(0))
            return metrics["out"], trained.stats, loss(learner.net(), added, None)[1]["out"]

        return after(False), after(True)

    ours, added = run(learner, offset)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours, added)


def test_a_bias_before_batch_norm_has_no_gradient(quick, fill, rng):
    """It cancels. Adam would turn the rounding errors of a gradient into whole steps."""
    block = fill(of(lambda: Block(4, 5, "batch")))
    x = rng.normal(size=(6, 4)).astype(np.float32)
    sgd = optax.sgd(1.0)
    step = quick(lambda block: descend(block, sgd, lambda net, x, key: (net(x)[:, 0].sum(), {}), x, jax.random.key(0)))
    after = step(replace(block, opt=sgd.init(block.params)))[0].params
    np.testing.assert_array_equal(after["linear"]["bias"], block.params["linear"]["bias"])
    assert np.abs(after["linear"]["kernel"] - block.params["linear"]["kernel"]).max() > 1e-3


@pytest.mark.parametrize("shape", [(8, 3), (4, 5, 2, 3)])
@pytest.mark.parametrize("backend", ["cpu", "gpu"])  # each has sums of its own, which this device can compute
def test_gradient_of_batch_norm_flows_through_the_statistics(monkeypatch, quick, rng, shape, backend):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    x, pull = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    weight, bias = (rng.normal(size=3).astype(np.float32) for _ in range(2))

    def ours(x, weight, bias):
        return batch_norm(x, weight, bias)[0]

    def plain(x, weight, bias):
        axes = tuple(range(x.ndim - 1))
        return (x - x.mean(axes)) / jnp.sqrt(x.var(axes) + 1e-5) * weight + bias

    def with_gradients(function):
        out, back = jax.vjp(function, x, weight, bias)
        return out, *back(pull)

    results, reference = quick(lambda: [with_gradients(function) for function in (ours, plain)])()
    for a, b in zip(results, reference, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("norm", ["batch", "layer", "none"])
def test_at_bfloat16_convolutions_keep_half_and_the_rest_stays(quick, fill, rng, norm):
    """Activations have 7 bits, what is computed from them 23, and so have weights and their gradients."""
    shape = (5, 4, 3)
    learner = fill(of(lambda: ConvBlock(shape, 6, 2, 1, norm)))
    x = rng.normal(size=(8, *shape)).astype(np.float32)
    pull = rng.normal(size=(8, 4, 3, 6)).astype(np.float32)
    sgd = optax.sgd(1.0)

    def loss(net, x, key):
        out = net(stored(x))
        return (out.astype(jnp.float32) * pull).mean(), {"out": out}

    def run(learner):
        return descend(learner, sgd, loss, x, jax.random.key(0))

    start = replace(learner, opt=sgd.init(learner.params))
    after, metrics = quick(run)(start)
    with jax.default_matmul_precision("bfloat16"):
        half, halved = quick(lambda start: run(start))(start)
    assert (metrics["out"].dtype, halved["out"].dtype) == (jnp.float32, jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves((half.params, half.stats))} == {np.dtype(np.float32)}
    differs = False
    for one, other, before in zip(*map(jax.tree.leaves, (half.params, after.params, start.params)), strict=True):
        step, error = np.linalg.norm(other - before), np.linalg.norm(one - other)
        assert error <= 0.03 * step
        differs |= error > 0
    assert differs


def test_eval_never_moves_the_statistics(quick, fill, rng):
    learner = fill(of(lambda: Block(4, 5, "batch")))
    batch = rng.normal(size=(6, 4)).astype(np.float32)

    @quick
    def run(learner):
        net = learner.net()
        first, second = net(batch), net(batch)
        trained, _ = descend(learner, STILL, lambda net, x, key: (net(x).sum(), {}), batch, jax.random.key(0))
        return learner.stats, first, second, trained.stats

    stats, first, second, trained = run(learner)
    np.testing.assert_array_equal(first, second)
    jax.tree.map(np.testing.assert_array_equal, stats, learner.stats)
    for name in ("mean", "var"):
        assert np.abs(trained["norm"][name] - learner.stats["norm"][name]).min() > 1e-4


def test_first_weights_are_uniform_with_pytorchs_bounds(quick):
    @quick
    def build(key):
        block = create(lambda: Block(100, 200, "batch"), STILL, key).params
        cells = [create(lambda cell=cell: cell.build(50, 25), STILL, key).params for cell in (GRU(), LSTM())]
        return block, cells

    block, cells = build(jax.random.key(0))
    # (array, bound): 1/sqrt(inputs) for a layer; every parameter of the cell has the bound of its state
    cases = [(block["linear"]["kernel"], 0.1), (block["linear"]["bias"], 0.1)]
    cases += [(cell[name][kind], 0.2) for cell in cells for name in cell for kind in ("kernel", "bias")]
    for weights, bound in cases:
        weights = np.asarray(weights)
        assert 0.93 * bound < np.abs(weights).max() <= bound
        tolerance = 4 / np.sqrt(weights.size)
        np.testing.assert_allclose(weights.std(), bound / np.sqrt(3), rtol=tolerance)
        np.testing.assert_allclose(weights.mean(), 0, atol=tolerance * bound)
    np.testing.assert_array_equal(block["norm"]["weight"], 1)
    np.testing.assert_array_equal(block["norm"]["bias"], 0)
