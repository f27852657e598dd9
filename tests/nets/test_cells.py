"""The cells against PyTorch's equations, written out gate by gate."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

from etd.nets.cells import CELLS, GRU, LSTM, NoCell
from etd.nets.model import create

INPUTS, SIZE = 4, 3


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


@pytest.fixture(scope="module")
def learner(fill):
    return lambda cell: fill(lambda key: create(lambda: cell.build(INPUTS, SIZE), optax.sgd(0.0), key))


def gates(learner, x, h):
    """For every gate W_i x + b_i and W_h h + b_h."""
    terms = []
    for name, row in (("inputs", x), ("hidden", h)):
        layer = jax.tree.map(np.asarray, learner.params[name])
        total = row @ layer["kernel"] + layer["bias"]
        terms.append([total[:, k : k + SIZE] for k in range(0, total.shape[1], SIZE)])
    return zip(*terms, strict=True)


def test_gru(quick, learner, rng):
    one = learner(GRU())
    x, h = (rng.normal(size=(5, size)).astype(np.float32) for size in (INPUTS, SIZE))
    (ir, hr), (iz, hz), (i_n, hn) = gates(one, x, h)
    r, z = sigmoid(ir + hr), sigmoid(iz + hz)
    n = np.tanh(i_n + r * hn)
    output, hidden = quick(lambda: one.net()(x, h))()
    np.testing.assert_allclose(output, (1 - z) * n + z * h, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(hidden, output)


def test_lstm_over_two_steps(quick, learner, rng):
    """The second step reads both halves of the first one's state."""
    one = learner(LSTM())
    xs = rng.normal(size=(2, 5, INPUTS)).astype(np.float32)
    hidden = rng.normal(size=(5, 2 * SIZE)).astype(np.float32)
    step = quick(lambda x, hidden: one.net()(x, hidden))
    h, c = hidden[:, :SIZE], hidden[:, SIZE:]
    for x in xs:
        (ii, hi), (i_f, hf), (ig, hg), (io, ho) = gates(one, x, h)
        c = sigmoid(i_f + hf) * c + sigmoid(ii + hi) * np.tanh(ig + hg)
        h = sigmoid(io + ho) * np.tanh(c)
        output, hidden = step(x, hidden)
        np.testing.assert_allclose(output, h, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(hidden, np.concatenate([h, c], -1), rtol=1e-5, atol=1e-6)


def test_without_a_cell_nothing_is_changed_or_kept(rng):
    x = rng.normal(size=(5, SIZE)).astype(np.float32)
    output, hidden = NoCell().build(SIZE, SIZE)(x, np.zeros((5, 0)))
    np.testing.assert_array_equal(output, x)
    assert hidden.shape == (5, 0)


@pytest.mark.parametrize("name", CELLS)
def test_shapes_are_as_promised(name):
    cell = CELLS[name]()
    x, hidden = np.zeros((2, SIZE), np.float32), np.zeros((2, cell.width(SIZE)), np.float32)
    output, after = jax.eval_shape(lambda: cell.build(SIZE, SIZE)(x, hidden))
    assert output.shape == x.shape
    assert after.shape == hidden.shape
