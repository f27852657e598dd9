"""Whole training iterations of a tiny ETD agent in DoorKey: seeds, repetition, continuation, and a seed gone bad."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.closeness import assert_close

from etd.agent.ppo import PPO
from etd.bonuses import ETD, NoBonus
from etd.envs import Task
from etd.training import backend, compiled, learn
from etd.training.experiment import Experiment

TINY = Experiment(
    env=Task("MiniGrid-DoorKey-5x5-v0"),
    bonus=ETD(minibatch=8, epochs=1, features=8, latent=8, embedding=8),
    ppo=PPO(minibatch=8, epochs=1, features=8, latent=8),
    num_envs=2,
    rollout_steps=8,
    seed=5,
    seeds=2,
)

pytestmark = pytest.mark.usefixtures("compile_quickly")


def to_host(tree):
    return jax.tree.map(
        lambda leaf: np.array(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf),
        tree,
    )


def to_device(state):
    state = jax.tree.map(jnp.asarray, state)
    return state._replace(key=jax.random.wrap_key_data(state.key))


def advance(experiment, state, iterations):
    """States and metrics after each iteration, on the host."""
    step, history = compiled.make_step(experiment), []
    for _ in range(iterations):
        state, metrics = step(state)
        history.append((to_host(state), to_host(metrics)))
    return history


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.fixture(scope="module")
def start():
    return to_host(compiled.make_init(TINY)())


@pytest.fixture(scope="module")
def history(start):
    return advance(TINY, to_device(start), 4)


def of_seed(tree, index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


def test_learning_moves_everything_that_learns(start, history):
    first, last = start.learner, history[-1][0].learner
    for before, after in ((first.policy, last.policy), (first.bonus.learner, last.bonus.learner)):
        moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), before, after)
        still = [path for path, moved in jax.tree_util.tree_leaves_with_path((moved.params, moved.stats)) if not moved]
        assert all("bias" in str(path) for path in still)  # a norm shifts back what a bias before it shifts
    assert (last.bonus.memory.filled > 0).all()
    metrics = history[-1][1]
    assert metrics["alive"].all()
    np.testing.assert_array_equal(metrics["step"], 4 * 16)
    assert all(np.isfinite(value).all() for name, value in metrics.items() if name.endswith("loss"))
    kernel = last.policy.params["value_head"]["kernel"]
    assert not np.array_equal(kernel[0], kernel[1])  # seeds are not copies of one another


def test_same_seed_twice_is_bitwise_equal(start, history):
    assert_same(to_host(compiled.make_init(TINY)()), start)
    assert_same(advance(TINY, to_device(start), 4), history)


def test_two_and_two_iterations_equal_four(history):
    assert_same(advance(TINY, to_device(history[1][0]), 2), history[2:])


def test_a_seed_alone_equals_itself_among_others(quick, start, history):
    """One seed without a seed axis: nothing but its own state and iterations."""
    state = to_device(of_seed(start, 1))
    step = quick(partial(learn.iterate, TINY, TINY.env.make()))
    for together in history:
        state, metrics = step(state)
        assert_same(to_host(state.envs), of_seed(together[0].envs, 1))
        assert_close(to_host((state, metrics)), of_seed(together, 1))


def test_a_seed_gone_bad_stands_still_and_the_other_goes_on(history):
    poisoned = jax.tree.map(np.copy, history[0][0])
    jax.tree.leaves(poisoned.learner.policy.params)[0][0] = np.nan
    after = advance(TINY, to_device(poisoned), 3)
    np.testing.assert_array_equal(after[-1][1]["alive"], [False, True])
    frozen = of_seed(after[-1][0], 0)
    np.testing.assert_array_equal(frozen.iteration, 4)
    assert_same(frozen._replace(iteration=0, alive=0), of_seed(poisoned, 0)._replace(iteration=0, alive=0))
    assert_same(of_seed(after, 1), of_seed(history[1:], 1))


def test_a_start_depends_on_its_seed_alone(quick, start):
    """The second seed's first weights and levels, from its own key and with another bonus: such runs are paired."""
    plain = replace(TINY, bonus=NoBonus())
    alone = to_host(quick(partial(learn.init, plain, plain.env.make()))(jax.random.key(TINY.seed + 1)))
    np.testing.assert_array_equal(alone.key, start.key[1])
    assert_same(alone.envs, of_seed(start.envs, 1))
    assert_close(alone.learner.policy, of_seed(start.learner.policy, 1))


def test_a_deterministic_experiment_has_its_kernels_fixed_on_a_gpu(monkeypatch):
    exact = replace(TINY, deterministic=True)
    assert compiled.options(exact) == compiled.options(TINY)  # a CPU needs none
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert compiled.FIXED_KERNELS.items() <= compiled.options(exact).items()
    assert not compiled.FIXED_KERNELS.items() & compiled.options(TINY).items()


def test_programs_with_options_describe_their_state(monkeypatch):
    """As on a GPU. A CPU accepts a GPU's options and ignores them; a jitted function with options inside another is an
    error in JAX."""
    monkeypatch.setattr(compiled, "options", lambda _: {**compiled.GRAPHS, **compiled.FIXED_KERNELS})
    shapes = backend.shapes(replace(TINY, seed=77))
    assert shapes.iteration.shape == (2,)
    np.testing.assert_array_equal(compiled.Program(TINY, lambda x: x + 1)(jnp.ones(2)), 2)
