"""Shared by all tests: the compilation cache, small rollouts and learners with random weights."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etd.core.types import Rollout, Transition
from etd.training import compiled

if jax.config.jax_compilation_cache_dir is None:  # JAX_COMPILATION_CACHE_DIR names another
    jax.config.update("jax_compilation_cache_dir", str(Path(__file__).resolve().parents[1] / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
if jax.__version_info__ < (0, 11):  # later versions lack the option, which takes half of what is left
    QUICK["xla_cpu_use_fusion_emitters"] = False
LIVELY: dict[str, Any] = {"xla_backend_optimization_level": 1, "xla_llvm_disable_expensive_passes": False}
QUICK_VARIABLES = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
"""The same for a process of its own."""
if "xla_cpu_use_fusion_emitters" in QUICK:
    QUICK_VARIABLES["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), "--xla_cpu_use_fusion_emitters=false"])


def pytest_collection_finish() -> None:
    """What is loaded by now stays. JAX makes many objects and few cycles; looking for them less often saves 7 %."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


@pytest.fixture(scope="session")
def quick():
    """jit that compiles two to four times faster to slower code; what is run once needs no better."""
    return partial(jax.jit, compiler_options=QUICK)


@pytest.fixture(scope="session")
def plainly():
    """Like ``quick``, but whatever is used twice is computed once, not twice with different rounding."""
    return partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture(scope="session")
def lively():
    """jit for loops that learn: compiles in half of the time to code as fast as the default's."""
    return partial(jax.jit, compiler_options={**QUICK, **LIVELY})


@contextmanager
def quick_compilation() -> Iterator[None]:
    """As ``quick``, for what etd itself compiles."""
    before, usual = jax.config.read("jax_disable_most_optimizations"), compiled.options
    jax.config.update("jax_disable_most_optimizations", True)
    compiled.options = lambda experiment: QUICK if jax.default_backend() == "cpu" else usual(experiment)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)
        compiled.options = usual


@pytest.fixture(scope="module")
def compile_quickly() -> Iterator[None]:
    with quick_compilation():
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def fill():
    """Random weights for what an ``init`` function describes, without compiling that function.

    No weight is zero, so heads that start at zero are put to work. Other state (the optimiser's, a memory) is zero.
    """

    def build(init, seed=0, bound=0.4):
        rng = np.random.default_rng(seed)

        def leaf(path, shape):
            names = [str(getattr(part, "name", getattr(part, "key", ""))) for part in path]
            if "params" in names:
                value = rng.uniform(-bound, bound, shape.shape)
            elif "stats" in names:
                value = rng.uniform(0.5, 1.5, shape.shape) - (names[-1] == "mean")  # variances are positive
            else:
                value = np.zeros(shape.shape)
            return jnp.asarray(value, shape.dtype)

        return jax.tree_util.tree_map_with_path(leaf, jax.eval_shape(init, jax.random.key(0)))

    return build


@pytest.fixture(scope="session")
def rollout_of():
    """A Rollout from what a test cares about; the rest is zero.

    ``obs`` [T, N, ...] is what the policy sees; without ``next_obs`` every successor inside an episode is the
    observation seen next, and the successors at the ends of episodes and of the rollout come from ``ends`` [T, N, ...].
    """

    def build(obs, done, ends, reward=None, terminated=None, fingerprint=None):
        obs, done, ends = np.asarray(obs), np.asarray(done), np.asarray(ends)
        steps, envs = done.shape
        following = np.concatenate([obs[1:], ends[-1:]])
        mask = done.reshape(steps, envs, *[1] * (obs.ndim - 2))
        next_obs = np.where(mask, ends, following)
        terminated = done if terminated is None else np.asarray(terminated)
        transition = Transition(
            jnp.asarray(next_obs),
            jnp.asarray(np.zeros((steps, envs)) if reward is None else reward, jnp.float32),
            jnp.asarray(terminated),
            jnp.asarray(done & ~terminated),
            jnp.asarray(np.zeros((steps, envs)) if fingerprint is None else fingerprint, jnp.uint32),
        )
        nothing = jnp.zeros((steps, envs))
        more = jnp.zeros((steps + 1, envs))
        return Rollout(
            jnp.asarray(np.concatenate([obs, ends[-1:]])), transition, nothing, nothing, more, more[..., None]
        )

    return build
