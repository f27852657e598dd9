"""Seeds spread over two devices. JAX counts its devices once, so a process of its own sees two."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from test_compiled import assert_close, assert_same, of_seed, to_device, to_host

from etd.agent.ppo import PPO
from etd.bonuses import NoBonus
from etd.core.types import Discrete, EnvSpec, Transition
from etd.lab.runs.store import Run
from etd.training import backend, compiled, learn
from etd.training.experiment import Experiment

DEVICES = {3: 1, 4: 2}
"""seeds: devices that share them, of two"""


@dataclass(frozen=True)
class Ring:
    """Eight places in a circle, with a reward at the first; compiles faster than any level."""

    spec = EnvSpec("ring", (8,), "float32", 1.0, Discrete(2), 4, 4, "vector")

    def make(self):
        return self

    def host(self):
        return None

    def reset(self, key):
        place, time = jax.random.randint(key, (), 0, 8), jnp.zeros((), jnp.int32)
        return (place, time), jax.nn.one_hot(place, 8)

    def step(self, state, action, key):
        place, time = (state[0] + 2 * action - 1) % 8, state[1] + 1
        reward, nothing = (place == 0).astype(jnp.float32), jnp.zeros((), jnp.uint32)
        return (place, time), Transition(jax.nn.one_hot(place, 8), reward, time == 4, time > 4, nothing)


PPO_OF_RING = PPO(minibatch=8, epochs=1, features=8, latent=8, norm="none")
RING = Experiment(env=Ring(), bonus=NoBonus(), ppo=PPO_OF_RING, num_envs=2, rollout_steps=8, seed=5, seeds=4)


def devices(tree):
    return {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(tree)}


def check_each_seed_equals_itself_alone(experiment, iterate):
    """Alone: without a seed axis, on one device, from the same first state. Returns the first and the last state."""
    state, step = compiled.make_init(experiment)(), compiled.make_step(experiment)
    start = to_host(state)
    alone = [to_device(of_seed(start, index)) for index in range(experiment.seeds)]
    for _ in range(2):
        state, metrics = step(state)
        assert devices((state, metrics)) == {DEVICES[experiment.seeds]}
        together = to_host((state, metrics))
        for index in range(experiment.seeds):
            alone[index], alone_metrics = iterate(alone[index])
            assert_same(to_host(alone[index].envs), of_seed(together[0].envs, index))
            assert_close(to_host((alone[index], alone_metrics)), of_seed(together, index))
    fresh = compiled.make_init(experiment)()  # what the host has looked at need not be given up
    step(fresh)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(fresh))
    return start, state


def check_saved_and_loaded_it_continues_exactly(experiment, state, folder):
    run, step = Run.create(folder, Experiment()), compiled.make_step(experiment)
    run.save(state, 2)
    loaded, _, _ = run.load(backend.shapes(experiment))
    assert_same(to_host(loaded), to_host(state))
    after = step(loaded)
    assert devices(after) == {2}
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(loaded))
    assert_same(to_host(after), to_host(step(state)))


def check_all(folder):
    assert jax.local_device_count() == 2
    iterate = jax.jit(partial(learn.iterate, RING, RING.env.make()))
    starts = {}
    for seeds in DEVICES:
        starts[seeds], state = check_each_seed_equals_itself_alone(replace(RING, seeds=seeds), iterate)
    for index in range(3):  # two devices begin as one does
        assert_close(of_seed(starts[4], index), of_seed(starts[3], index))
    check_saved_and_loaded_it_continues_exactly(RING, state, folder)


@pytest.mark.slow
def test_two_devices_share_the_seeds(tmp_path):
    settings = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
        "PYTHONHASHSEED": "0",  # sets in one order make one program, which the compilation cache knows again
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, __file__, str(tmp_path / "run")]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    check_all(Path(sys.argv[1]))
