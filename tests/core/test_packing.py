"""Packing keeps every bit, before and after stacking."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etd.core.packing import Packed, pack, unpack


class State(NamedTuple):
    time: jax.Array
    done: jax.Array
    value: jax.Array
    hashed: jax.Array
    obs: jax.Array
    byte: jax.Array
    key: jax.Array
    nothing: None = None


def states(seed: int) -> State:
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 32, (3, 5), dtype=np.uint32)
    value = bits[0].view(np.float32)
    value[:3] = np.nan, -0.0, 1e-42  # not a number, a signed zero, a denormal
    return State(
        jnp.asarray(bits[1].view(np.int32)),
        jnp.asarray(rng.random(5) < 0.5),
        jnp.asarray(value),
        jnp.asarray(bits[2]),
        jnp.asarray(rng.random((5, 2, 2)), jnp.float32),
        jnp.asarray(rng.integers(0, 256, 5), jnp.uint8),
        jax.random.split(jax.random.key(seed), 5),
    )


def same(a: State, b: State) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def test_a_tree_comes_back_in_the_same_bits() -> None:
    state = states(0)
    packed = pack(state)
    assert packed.rows.shape == (4, 5)
    assert len(packed.others) == 3  # images, bytes and keys
    same(unpack(packed), state)
    same(jax.jit(lambda state: unpack(pack(state)))(state), state)


@pytest.mark.parametrize("seeds", [False, True])
def test_what_a_loop_stacks_is_unpacked_with_its_axes(seeds: bool) -> None:
    state = states(1)

    def step(carry: Packed, _: None) -> tuple[Packed, Packed]:
        state = unpack(carry)
        return pack(state._replace(time=state.time + 1)), carry

    def loop(state: State) -> tuple[State, State]:
        last, rows = jax.lax.scan(step, pack(state), length=3)
        return unpack(last), unpack(rows)

    if seeds:
        state = jax.tree.map(lambda a, b: jnp.stack([a, b]), state, states(2))
        last, rows = jax.vmap(loop)(state)
        rows = jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), rows)
    else:
        last, rows = loop(state)
    for t in range(3):
        same(jax.tree.map(lambda leaf, t=t: leaf[t], rows), state._replace(time=state.time + t))
    same(last, state._replace(time=state.time + 3))
