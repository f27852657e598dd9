"""Layers with PyTorch's default initialisation, as in the paper's runs.

Weights and biases are drawn from U(-1/sqrt(fan_in), 1/sqrt(fan_in)); norm layers start at weight 1, bias 0. A module is
built with each ``Drawn`` weight set to its bound; ``nets.model.create`` then draws all of a network's weights at once,
because every draw is compiled separately: ten took 12 s on a CPU, one of the same total size 1.5 s.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.lax import optimization_barrier

from etd.core.types import Array

NormKind = Literal["batch", "layer", "none"]


def stored(x: Array) -> Array:
    """Activations as convolutions keep them: in a program traced at the precision bfloat16, half as large. With many
    seeds a GPU spends its time on moving them. Sums of products are still in float32."""
    half = jax.config.jax_default_matmul_precision == "bfloat16"  # type: ignore[attr-defined]
    return x.astype(jnp.bfloat16) if half else x


def floating(x: Array) -> Array:
    """Whole numbers as float32; floats of any width as they are."""
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)


class Drawn(nnx.Param):
    """A weight drawn from U(-bound, bound); its value at construction is the bound."""


def _drawn(shape: tuple[int, ...], bound: float) -> Drawn:
    return Drawn(jnp.full(shape, bound))


class Linear(nnx.Module):
    """y = x W + b. The bound is 1/sqrt(inputs) if not given; 0 makes a layer that starts at zero."""

    def __init__(self, inputs: int, outputs: int, bound: float | None = None):
        bound = 1 / math.sqrt(inputs) if bound is None else bound
        self.kernel = _drawn((inputs, outputs), bound)
        self.bias = _drawn((outputs,), bound)

    def __call__(self, x: Array) -> Array:
        return self.multiply(x) + self.bias[...]

    def multiply(self, x: Array) -> Array:
        """x W"""
        return product(floating(x), self.kernel[...])


@jax.custom_vjp
def product(x: Array, kernel: Array) -> Array:
    """x [..., i] times kernel [i, o] in float32, with a gradient that is fast on a CPU."""
    return _times(x, kernel)


def _times(x: Array, kernel: Array) -> Array:
    return jnp.matmul(x, kernel.astype(x.dtype), preferred_element_type=jnp.float32)


def _product_forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _times(x, kernel), (x, kernel)


def _product_backward(saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    x, kernel = saved
    grad = grad.astype(x.dtype)
    return _times(grad, kernel.T).astype(x.dtype), _kernel_gradient(x, grad)


product.defvjp(_product_forward, _product_backward)


def _kernel_gradient(x: Array, grad: Array) -> Array:
    """sum over rows of x_i grad_o, [i, o].

    On a CPU a product of two tall matrices is up to five times faster if the narrower one's columns become the rows of
    the result (0.6 instead of 2.8 ms for 1,024 rows, i = 1,024 and o = 64, on one core). XLA would undo that by folding
    the transposition into the product, if nothing stood between them.
    """
    rows, outs = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    if rows.shape[1] <= outs.shape[1]:
        return _times(rows.T, outs)
    return settle(_times(outs.T, rows)).T


def settle(x: Any) -> Any:
    """Keep the CPU compiler from fusing the computation of ``x`` into its consumers, which would repeat it in each.

    These barriers cut the CPU time of a forward and backward pass through the grid trunk alone by 10-20 %; over whole
    model epochs the gain was within the noise.
    """
    return optimization_barrier(x) if jax.default_backend() == "cpu" else x


class Norm(nnx.Module):
    """BatchNorm per channel, LayerNorm over all of ``shape`` with one weight per entry, or nothing, of x + offset.

    Training uses the minibatch's statistics and updates the running ones (momentum 0.1 in PyTorch's sense, running
    variance unbiased); evaluation uses the running ones and leaves them unchanged. A layer passes its bias as the
    offset: a batch's mean contains it, so BatchNorm need not add it to every entry, and its gradient is zero rather
    than rounding errors.
    """

    def __init__(self, kind: NormKind, shape: tuple[int, ...]):
        self.kind = kind
        self.training = False
        affine = shape[-1:] if kind == "batch" else shape
        if kind != "none":
            self.weight = nnx.Param(jnp.ones(affine))
            self.bias = nnx.Param(jnp.zeros(affine))
        if kind == "batch":
            self.mean = nnx.BatchStat(jnp.zeros(affine))
            self.var = nnx.BatchStat(jnp.ones(affine))

    def __call__(self, x: Array, offset: Array | float = 0.0) -> Array:
        if self.kind == "none":
            return x.astype(jnp.float32) + offset
        weight, bias = self.weight[...], self.bias[...]
        if self.kind == "layer":
            x = x.astype(jnp.float32) + offset
            axes = tuple(range(-weight.ndim, 0))
            mean, square = x.mean(axes, keepdims=True), (x * x).mean(axes, keepdims=True)
            scale = jax.lax.rsqrt(jnp.maximum(square - mean * mean, 0) + EPSILON)
            return (x - mean) * scale * weight + bias
        x = settle(x)
        if not self.training:
            scale = jax.lax.rsqrt(self.var[...] + EPSILON) * weight
            scale, shift = settle((scale, bias - (self.mean[...] - offset) * scale))
            return x.astype(jnp.float32) * scale + shift
        y, mean, var = batch_norm(x, weight, bias)
        count = x.size // x.shape[-1]
        unbiased = var * (count / max(count - 1, 1))
        self.mean[...] = 0.9 * self.mean[...] + 0.1 * jax.lax.stop_gradient(mean + offset)
        self.var[...] = 0.9 * self.var[...] + 0.1 * jax.lax.stop_gradient(unbiased)
        return y


EPSILON = 1e-5


@jax.custom_vjp
def batch_norm(x: Array, weight: Array, bias: Array) -> tuple[Array, Array, Array]:
    """z weight + bias per channel, with z = (x - mean) / sqrt(var + 1e-5) by the batch's mean and variance, and these
    two, through which no gradient flows.

    Its own gradient takes fewer kernels on a GPU than the automatic one, which reads the activations more often.
    """
    return _batch_norm_forward(x, weight, bias)[0]


def _batch_norm_forward(x: Array, weight: Array, bias: Array) -> tuple[tuple[Array, Array, Array], tuple[Array, ...]]:
    wide = x.astype(jnp.float32)
    axes, count = tuple(range(x.ndim - 1)), x.size // x.shape[-1]
    mean, square = (total / count for total in _sums(wide, wide * wide, axes))
    var = jnp.maximum(square - mean * mean, 0)
    root = jax.lax.rsqrt(var + EPSILON)
    scale, shift = settle((root * weight, bias - mean * root * weight))
    return (wide * scale + shift, mean, var), (x, weight, mean, root)


def _batch_norm_backward(saved: tuple[Array, ...], grads: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    """weight / sqrt(var + 1e-5) (g - E g - z E g z), with expectations over the batch."""
    x, weight, mean, root = saved
    grad, wide = grads[0], x.astype(jnp.float32)
    count = x.size // x.shape[-1]
    total, along = _sums(grad, grad * ((wide - mean) * root), tuple(range(x.ndim - 1)))
    # As scale g + slope x + shift, with numbers per channel.
    scale = weight * root
    slope = -scale * root * along / count
    scale, slope, shift = settle((scale, slope, -scale * total / count - slope * mean))
    return (grad * scale + wide * slope + shift).astype(x.dtype), along, total


batch_norm.defvjp(_batch_norm_forward, _batch_norm_backward)


def _sums(a: Array, b: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """The sums of both over axes; on an accelerator in one pass over the memory."""
    if jax.default_backend() == "cpu":  # which has vector instructions for plain sums only
        return a.sum(axes), b.sum(axes)
    zero = jnp.zeros((), a.dtype)
    total, other = jax.lax.reduce((a, b), (zero, zero), lambda x, y: (x[0] + y[0], x[1] + y[1]), axes)
    return total, other


class Block(nnx.Module):
    """Linear, norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, norm: NormKind):
        self.linear = Linear(inputs, outputs)
        self.norm = Norm(norm, (outputs,))

    def __call__(self, x: Array) -> Array:
        return jax.nn.relu(self.norm(self.linear.multiply(x), self.linear.bias[...]))


class ConvBlock(nnx.Module):
    """Convolution, norm, ReLU over [B, height, width, channels]."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        outputs: int,
        kernel: int,
        stride: int,
        norm: NormKind,
        padding: int = 0,
    ):
        height, width, channels = shape
        bound = 1 / math.sqrt(kernel * kernel * channels)
        self.kernel = _drawn((kernel, kernel, channels, outputs), bound)
        self.bias = _drawn((outputs,), bound)
        self.stride, self.padding = stride, padding
        out = tuple((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
        self.shape: tuple[int, int, int] = (out[0], out[1], outputs)
        self.norm = Norm(norm, self.shape)

    def __call__(self, x: Array) -> Array:
        x, pad = floating(x), self.padding
        x = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0))) if pad else x
        size, stride = self.kernel.shape[0], self.stride
        if size % stride == 0:
            y = conv(_blocks(x, stride), _block_kernel(self.kernel[...], stride), size // stride)
        else:
            steps = (stride, stride)
            layout = ("NHWC", "HWIO", "NHWC")
            x = x.astype(jnp.float32)
            y = jax.lax.conv_general_dilated(x, self.kernel[...], steps, "VALID", dimension_numbers=layout)
        return stored(jax.nn.relu(self.norm(y, self.bias[...])))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def conv(x: Array, kernel: Array, size: int) -> Array:
    """``size`` x ``size`` convolution of stride 1 as one matmul: [..., h, w, c] and [size^2 c, o] to
    [..., h-size+1, w-size+1, o].

    On small grids this beats the convolution primitive on both CPU and GPU, and it stays one batched matmul under a
    vmap over seeds. On a CPU the primitive is ten times slower inside a loop, and training is one (6.0 s against 0.6 s
    for the loss and gradient of 512 images of 64 x 64). The barriers keep XLA from fusing the patches with neighbouring
    operations and computing them more than once: an iteration of 32 seeds on an H200 took 939 ms without them, 813 ms
    with them (tensorfloat32).
    """
    return _conv_forward(x, kernel, size)[0]


def _patches(x: Array, size: int) -> Array:
    x = settle(x)
    height, width = (side - size + 1 for side in x.shape[-3:-1])
    corners = [x[..., i : i + height, j : j + width, :] for i in range(size) for j in range(size)]
    return optimization_barrier(jnp.concatenate(corners, -1))


def _conv_forward(x: Array, kernel: Array, size: int) -> tuple[Array, tuple[Array, Array]]:
    patches = _patches(x, size)
    return _times(patches, kernel).astype(x.dtype), (patches, kernel)


def _conv_backward(size: int, saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    patches, kernel = saved
    grad = optimization_barrier(grad)
    grad_kernel = _kernel_gradient(patches, grad)
    corners = jnp.split(optimization_barrier(_times(grad, kernel.T).astype(grad.dtype)), size * size, -1)
    lead, last = [(0, 0)] * (grad.ndim - 3), size - 1
    offsets = [(i, j) for i in range(size) for j in range(size)]
    padded = [
        jnp.pad(c, [*lead, (i, last - i), (j, last - j), (0, 0)]) for c, (i, j) in zip(corners, offsets, strict=True)
    ]
    total: Array = sum((corner.astype(jnp.float32) for corner in padded[1:]), padded[0].astype(jnp.float32))
    return total.astype(grad.dtype), grad_kernel


conv.defvjp(_conv_forward, _conv_backward)


def _blocks(x: Array, stride: int) -> Array:
    """[B, h, w, c] as [B, h/s, w/s, s s c]: a convolution whose kernel size is a multiple of its stride s is a stride-1
    convolution over these. Rows and columns that no kernel reaches are dropped."""
    if stride == 1:
        return x
    batch, height, width, channels = x.shape
    rows, columns = height // stride, width // stride
    x = x[:, : rows * stride, : columns * stride].reshape(batch, rows, stride, columns, stride, channels)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, rows, columns, stride * stride * channels)


def _block_kernel(kernel: Array, stride: int) -> Array:
    """[K, K, c, o] as [K K c, o], in the order of the patches of ``_blocks``."""
    size, outputs = kernel.shape[0] // stride, kernel.shape[-1]
    split = kernel.reshape(size, stride, size, stride, -1, outputs)
    return split.transpose(0, 2, 1, 3, 4, 5).reshape(-1, outputs)
