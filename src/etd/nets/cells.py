"""Recurrent cells: what a network remembers from step to step. ``CELLS`` is the registry.

A cell's module maps (x [B, F], hidden [B, H]) to (output [B, size], hidden [B, H]). Each environment's memory is one
row of ``hidden``, zero before an episode's first observation; the code that carries it need not know the cell.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from etd.core.types import Array
from etd.nets.blocks import Linear


@dataclass(frozen=True)
class Cell(ABC):
    """Which cell a network uses. Subclass it, with fields of your own, to add one.

    >>> LSTM().width(64)  # h and c side by side
    128
    """

    @abstractmethod
    def build(self, inputs: int, size: int) -> nnx.Module:
        """The module: (x [B, inputs], hidden [B, H]) to (output [B, size], hidden [B, H])."""

    @abstractmethod
    def width(self, size: int) -> int:
        """H, the width of the recurrent state; 0 without memory."""


class GRUCell(nnx.Module):
    """PyTorch's GRU cell: two bias vectors; the reset gate multiplies the hidden term after its bias is added.

    r = s(W_ir x + b_ir + W_hr h + b_hr),  z likewise,  n = tanh(W_in x + b_in + r (W_hn h + b_hn)),
    h' = (1 - z) n + z h.
    """

    def __init__(self, inputs: int, size: int):
        self.inputs = Linear(inputs, 3 * size, bound=1 / math.sqrt(size))
        self.hidden = Linear(size, 3 * size, bound=1 / math.sqrt(size))

    def __call__(self, x: Array, hidden: Array) -> tuple[Array, Array]:
        ir, iz, new = jnp.split(self.inputs(x), 3, -1)
        hr, hz, hn = jnp.split(self.hidden(hidden), 3, -1)
        reset, update = jax.nn.sigmoid(ir + hr), jax.nn.sigmoid(iz + hz)
        new = jnp.tanh(new + reset * hn)
        hidden = (1 - update) * new + update * hidden
        return hidden, hidden


class LSTMCell(nnx.Module):
    """PyTorch's LSTM cell: two bias vectors; the recurrent state is h and c side by side.

    i = s(W_ii x + b_ii + W_hi h + b_hi),  f and o likewise,  g the same with tanh,
    c' = f c + i g,  h' = o tanh(c').
    """

    def __init__(self, inputs: int, size: int):
        self.inputs = Linear(inputs, 4 * size, bound=1 / math.sqrt(size))
        self.hidden = Linear(size, 4 * size, bound=1 / math.sqrt(size))

    def __call__(self, x: Array, hidden: Array) -> tuple[Array, Array]:
        h, c = jnp.split(hidden, 2, -1)
        i, f, g, o = jnp.split(self.inputs(x) + self.hidden(h), 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return h, jnp.concatenate([h, c], -1)


class Identity(nnx.Module):
    """Returns input and state unchanged."""

    def __call__(self, x: Array, hidden: Array) -> tuple[Array, Array]:
        return x, hidden


@dataclass(frozen=True)
class GRU(Cell):
    """Gated recurrent unit, as in the paper."""

    def build(self, inputs: int, size: int) -> nnx.Module:
        return GRUCell(inputs, size)

    def width(self, size: int) -> int:
        return size


@dataclass(frozen=True)
class LSTM(Cell):
    """Long short-term memory."""

    def build(self, inputs: int, size: int) -> nnx.Module:
        return LSTMCell(inputs, size)

    def width(self, size: int) -> int:
        return 2 * size


@dataclass(frozen=True)
class NoCell(Cell):
    """No memory: every observation is processed on its own. Input and output have the same width."""

    def build(self, inputs: int, size: int) -> nnx.Module:
        return Identity()

    def width(self, size: int) -> int:
        return 0


CELLS: dict[str, type[Cell]] = {"gru": GRU, "lstm": LSTM, "none": NoCell}
