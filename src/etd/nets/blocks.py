"""Layers with PyTorch's default initialisation, so that runs start where the paper's runs start.

Weights and biases are drawn from U(-1/sqrt(fan_in), 1/sqrt(fan_in)); norm layers start at weight 1, bias 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.lax import optimization_barrier

from etd.core.types import Array

NormKind = Literal["batch", "layer", "none"]


def _uniform(bound: float) -> Callable[..., Array]:
    def draw(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return draw


def linear(inputs: int, outputs: int, rngs: nnx.Rngs, zero: bool = False) -> nnx.Linear:
    """y = x W + b; all zero for the heads of the policy, which makes its first policy uniform and its values 0."""
    init = nnx.initializers.zeros_init() if zero else _uniform(1 / math.sqrt(inputs))
    return nnx.Linear(inputs, outputs, kernel_init=init, bias_init=init, rngs=rngs)


class Norm(nnx.Module):
    """BatchNorm per channel, LayerNorm over all of ``shape`` with one weight per entry, or nothing.

    Training uses the minibatch's statistics and moves the running ones (momentum 0.1 in PyTorch's sense, running
    variance unbiased); otherwise the running ones are used and cannot move.
    """

    def __init__(self, kind: NormKind, shape: tuple[int, ...]):
        self.kind = kind
        self.axes = len(shape)
        self.training = False
        affine = shape[-1:] if kind == "batch" else shape
        if kind != "none":
            self.weight = nnx.Param(jnp.ones(affine))
            self.bias = nnx.Param(jnp.zeros(affine))
        if kind == "batch":
            self.mean = nnx.BatchStat(jnp.zeros(affine))
            self.var = nnx.BatchStat(jnp.ones(affine))

    def __call__(self, x: Array) -> Array:
        if self.kind == "none":
            return x
        if self.kind == "layer":
            axes = tuple(range(-self.axes, 0))
            mean, var = _moments(x, axes)
            scale = jax.lax.rsqrt(var + 1e-5)
            return (x - mean) * scale * self.weight[...] + self.bias[...]
        mean, var = self._batch_moments(x) if self.training else (self.mean[...], self.var[...])
        scale = jax.lax.rsqrt(var + 1e-5) * self.weight[...]
        return x * scale + (self.bias[...] - mean * scale)

    def _batch_moments(self, x: Array) -> tuple[Array, Array]:
        mean, var = (m.reshape(-1) for m in _moments(x, tuple(range(x.ndim - 1))))
        count = x.size // x.shape[-1]
        unbiased = var * (count / max(count - 1, 1))
        self.mean[...] = 0.9 * self.mean[...] + 0.1 * jax.lax.stop_gradient(mean)
        self.var[...] = 0.9 * self.var[...] + 0.1 * jax.lax.stop_gradient(unbiased)
        return mean, var


def _moments(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    mean = x.mean(axes, keepdims=True)
    return mean, jnp.maximum((x * x).mean(axes, keepdims=True) - mean * mean, 0)


class Block(nnx.Module):
    """Linear, norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, norm: NormKind, rngs: nnx.Rngs):
        self.linear = linear(inputs, outputs, rngs)
        self.norm = Norm(norm, (outputs,))

    def __call__(self, x: Array) -> Array:
        return jax.nn.relu(self.norm(self.linear(x)))


class ConvBlock(nnx.Module):
    """Convolution, norm, ReLU over [B, height, width, channels]."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        outputs: int,
        kernel: int,
        stride: int,
        norm: NormKind,
        rngs: nnx.Rngs,
        padding: int = 0,
    ):
        height, width, channels = shape
        bound = 1 / math.sqrt(kernel * kernel * channels)
        self.kernel = nnx.Param(_uniform(bound)(rngs.params(), (kernel, kernel, channels, outputs)))
        self.bias = nnx.Param(_uniform(bound)(rngs.params(), (outputs,)))
        self.stride, self.padding = stride, padding
        out = tuple((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
        self.shape: tuple[int, int, int] = (out[0], out[1], outputs)
        self.norm = Norm(norm, self.shape)

    def __call__(self, x: Array) -> Array:
        pad = self.padding
        x = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0))) if pad else x
        kernel = self.kernel[...]
        if kernel.shape[0] == 2 and self.stride == 1:
            y = conv2x2(x, kernel.reshape(-1, kernel.shape[-1]))
        else:
            steps = (self.stride, self.stride)
            y = jax.lax.conv_general_dilated(x, kernel, steps, "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jax.nn.relu(self.norm(y + self.bias[...]))


@jax.custom_vjp
def conv2x2(x: Array, kernel: Array) -> Array:
    """2x2 convolution of stride 1 as one matmul: [..., h, w, c] and [4c, o] to [..., h-1, w-1, o].

    On small grids this beats the convolution primitive, on the CPU and on the GPU, and it stays one batched matmul
    under a seed vmap. The barriers keep XLA from fusing the cheap patch copies into, and so repeating them in, the
    loops around them: on two CPU cores forward and backward through the grid trunk go from 36 to 26 ms a minibatch.
    """
    return _patches(x) @ kernel


def _patches(x: Array) -> Array:
    corners = [x[..., :-1, :-1, :], x[..., :-1, 1:, :], x[..., 1:, :-1, :], x[..., 1:, 1:, :]]
    return optimization_barrier(jnp.concatenate(corners, -1))


def _conv2x2_forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    patches = _patches(x)
    return patches @ kernel, (patches, kernel)


def _conv2x2_backward(saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    patches, kernel = saved
    grad = optimization_barrier(grad)
    rows, outs = patches.reshape(-1, patches.shape[-1]), grad.reshape(-1, grad.shape[-1])
    grad_kernel = jnp.einsum("nk,no->ok", rows, outs).T
    corners = jnp.split(optimization_barrier(grad @ kernel.T), 4, -1)
    lead = [(0, 0)] * (grad.ndim - 3)
    offsets = [(0, 0), (0, 1), (1, 0), (1, 1)]
    padded = [jnp.pad(c, [*lead, (i, 1 - i), (j, 1 - j), (0, 0)]) for c, (i, j) in zip(corners, offsets, strict=True)]
    return optimization_barrier(sum(padded[1:], padded[0])), grad_kernel


conv2x2.defvjp(_conv2x2_forward, _conv2x2_backward)


class GRU(nnx.Module):
    """PyTorch's GRU cell: two bias vectors, the reset gate multiplies the already biased hidden term.

    r = s(W_ir x + b_ir + W_hr h + b_hr),  z likewise,  n = tanh(W_in x + b_in + r (W_hn h + b_hn)),
    h' = (1 - z) n + z h.
    """

    def __init__(self, inputs: int, size: int, rngs: nnx.Rngs):
        draw = _uniform(1 / math.sqrt(size))
        self.inputs = nnx.Linear(inputs, 3 * size, kernel_init=draw, bias_init=draw, rngs=rngs)
        self.hidden = nnx.Linear(size, 3 * size, kernel_init=draw, bias_init=draw, rngs=rngs)

    def __call__(self, x: Array, hidden: Array) -> Array:
        ir, iz, new = jnp.split(self.inputs(x), 3, -1)
        hr, hz, hn = jnp.split(self.hidden(hidden), 3, -1)
        reset, update = jax.nn.sigmoid(ir + hr), jax.nn.sigmoid(iz + hz)
        new = jnp.tanh(new + reset * hn)
        return (1 - update) * new + update * hidden
