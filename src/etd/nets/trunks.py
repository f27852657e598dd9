"""Feature extractors: observation in, vector of ``features`` out. A ``Trunk`` chooses one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import jax
import jax.numpy as jnp
from flax import nnx

from etd.core.types import Array, EnvSpec
from etd.nets.blocks import Block, ConvBlock, Linear, Norm, NormKind, stored

# (outputs, kernel, stride) of each convolution, from the paper's appendix on network structures.
GRID_LAYERS = ((32, 2, 1), (64, 2, 1), (64, 2, 1))
PIXEL_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 4, 1))
LAYERS = {"grid": GRID_LAYERS, "pixels": PIXEL_LAYERS}


class ConvTrunk(nnx.Module):
    """Norm on the raw image, three convolution blocks, one linear block."""

    def __init__(self, spec: EnvSpec, layers: tuple[tuple[int, int, int], ...], features: int, norm: NormKind):
        height, width, channels = spec.obs_shape
        shape = (height, width, channels)
        self.high = spec.obs_high
        self.input_norm = Norm(norm, shape)
        convs = []
        for index, (outputs, kernel, stride) in enumerate(layers):
            small = index == 0 and min(height, width) <= 3
            convs.append(ConvBlock(shape, outputs, kernel, stride, norm, padding=1 if small else 0))
            shape = convs[-1].shape
        self.convs = nnx.List(convs)
        self.project = Block(shape[0] * shape[1] * shape[2], features, norm)

    def __call__(self, obs: Array) -> Array:
        x = stored(self.input_norm(obs.astype(jnp.float32) / self.high))
        for conv in self.convs:
            x = conv(x)
        return self.project(x.reshape(x.shape[0], -1))


class VectorTrunk(nnx.Module):
    """Three linear layers with ReLU and no norm, as in the authors' code for vector observations."""

    def __init__(self, spec: EnvSpec, features: int):
        sizes = [spec.obs_size, 256, 256, features]
        self.layers = nnx.List([Linear(a, b) for a, b in pairwise(sizes)])

    def __call__(self, obs: Array) -> Array:
        x = obs.astype(jnp.float32).reshape(obs.shape[0], -1)
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        return x


@dataclass(frozen=True)
class Trunk:
    """Which feature extractor a network uses. This one, the paper's, depends on the kind of observation. To add one,
    subclass it, with fields of your own, and build a module that maps [B, *obs_shape] to [B, features].

    >>> import etd
    >>> spec = etd.Task("MiniGrid-DoorKey-8x8-v0").spec
    >>> type(Trunk().build(spec, features=64, norm="batch")).__name__
    'ConvTrunk'
    """

    def build(self, spec: EnvSpec, features: int, norm: NormKind) -> nnx.Module:
        """The module: [B, *obs_shape] to [B, features]."""
        if spec.kind == "vector":
            return VectorTrunk(spec, features)
        return ConvTrunk(spec, LAYERS[spec.kind], features, norm)
