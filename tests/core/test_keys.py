import jax
import numpy as np

from etd.core.keys import named

NAMES = ["policy", "bonus", "iteration", "level", "levels", "action", "env", "score", "model", "ppo", "play", "memory"]


def bits(key):
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def test_names_and_indices_give_distinct_keys():
    root = jax.random.key(0)
    keys = [named(root, name, *indices) for name in NAMES for indices in [(), (0,), (1,), (0, 1), (1, 0), (1, 1)]]
    keys += [root, jax.random.key(1), named(jax.random.key(1), "policy")]
    assert len({bits(key) for key in keys}) == len(keys)


def test_a_key_depends_on_its_own_name_and_indices_only():
    root = jax.random.key(7)
    alone = bits(named(root, "level", 3, 5))
    for name in NAMES:
        named(root, name, 3)
    assert bits(named(root, "level", 3, 5)) == alone
    traced = jax.jit(jax.vmap(lambda index: jax.random.key_data(named(root, "level", 3, index))))(np.arange(6))
    assert tuple(np.asarray(traced[5]).tolist()) == alone
