"""Every level compiles in seconds, on the CPU and without help from the compilation cache."""

from __future__ import annotations

import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from etd.envs.minigrid import IDS, make

LIMIT_S = 10.0


@pytest.fixture(scope="module", autouse=True)
def _uncached() -> Iterator[None]:
    """Whether the cache is in use is asked once and remembered, so it has to be reset on both sides."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", before)
    reset_cache()


@pytest.mark.slow
@pytest.mark.parametrize("name", IDS)
def test_reset_and_step_compile_in_seconds(name: str) -> None:
    """Together, tracing counted; ``-rP`` shows the times."""
    env = make(name)
    world, _ = jax.eval_shape(env.reset, jax.random.key(0))
    began = time.perf_counter()
    jax.jit(env.reset).lower(jax.random.key(0)).compile()
    between = time.perf_counter()
    jax.jit(env.step).lower(world, jax.ShapeDtypeStruct((), jnp.int32)).compile()
    ended = time.perf_counter()
    print(f"{name}: reset {between - began:.1f} s, step {ended - between:.1f} s")
    assert ended - began < LIMIT_S
