"""A program's arithmetic, counted from its trace (matrix products and convolutions, loops multiplied out), and the rate
of a large matrix product, the most it could reach."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params

from etd.core.types import PyTree
from etd.lab.bench import timing


def matmul_rate() -> float:
    """FLOP/s of a large square float32 matrix product at the current precision."""
    size = 2048 if jax.default_backend() == "cpu" else 8192
    a = jax.random.normal(jax.random.key(0), (size, size))
    product = jax.jit(lambda a: a @ a)
    return 2 * size**3 / timing.timed(lambda: product(a), 5)[1]


def flops(function: Callable, *args: PyTree) -> float:
    """Multiplications and additions of all matrix products and convolutions that ``function`` performs."""
    return _count(jax.make_jaxpr(function)(*args).jaxpr)


def _count(jaxpr: Any) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        inner = sum(_count(sub) for sub in jaxprs_in_params(equation.params))
        total += inner * equation.params.get("length", 1)
        if equation.primitive.name == "dot_general":
            (contract, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[i] for i in contract)
        elif equation.primitive.name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            out_features = equation.params["dimension_numbers"].rhs_spec[0]
            total += 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) / kernel[out_features]
    return total
