from __future__ import annotations

import jax
import numpy as np
import pytest
from oracle import Visits

from etd.bonuses import visits

BLOCK = 2**12
MANY = 50 * BLOCK
"""distinct observations of each family below; codes of 32 bits would collide 5 times, of 64 bits never"""


@pytest.fixture(scope="module")
def coded():
    """The codes of many observations, as one 64-bit number each."""
    code = jax.jit(visits.code)

    def run(obs):
        blocks = [obs[None, start : start + BLOCK] for start in range(0, len(obs), BLOCK)]
        words = np.concatenate([np.asarray(code(block))[0] for block in blocks]).astype(np.uint64)
        return words[:, 0] << np.uint64(32) | words[:, 1]

    return run


def distinct(obs):
    """The first MANY different ones."""
    different = list(dict.fromkeys(map(np.ndarray.tobytes, obs)))
    assert len(different) >= MANY
    return np.frombuffer(b"".join(different[:MANY]), obs.dtype).reshape(-1, *obs.shape[1:])


def cells(rng, *lead):
    """Random contents of MiniGrid cells: an object, a colour and a state each."""
    return np.stack([rng.integers(high, size=lead, dtype=np.uint8) for high in (11, 6, 4)], -1)


def random_bytes(rng):
    return rng.integers(256, size=(MANY + 1000, 7, 7, 3), dtype=np.uint8)


def grid_like(rng):
    return cells(rng, MANY + 1000, 7, 7)


def few_cells_changed(rng):
    """One view of a room in which at most two cells differ: what an agent sees hundreds of times an episode."""
    out = np.tile(cells(rng, 7, 7), (MANY + 50_000, 1, 1, 1))
    for _ in range(2):
        row, column = rng.integers(7, size=(2, len(out)))
        out[np.arange(len(out)), row, column] = cells(rng, len(out))
    return out


def cells_moved(rng):
    """The same cells at other places: a code that adds up its parts must still tell them apart."""
    return cells(rng, 49)[rng.permuted(np.tile(np.arange(49), (MANY + 1000, 1)), axis=1)]


def real_vectors(rng):
    return rng.normal(size=(MANY + 1000, 3)).astype(np.float32)


def real_neighbours(rng):
    """Vectors apart by a few units in the last place."""
    base = rng.normal(size=3).astype(np.float32).view(np.uint32)
    return (base + rng.integers(0, 128, size=(MANY + 50_000, 3), dtype=np.uint32)).view(np.float32)


FAMILIES = [random_bytes, grid_like, few_cells_changed, cells_moved, real_vectors, real_neighbours]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_no_two_of_many_observations_share_a_code(coded, rng, family):
    """And either half is as good as random: about MANY^2 / 2^33 = 5 pairs share it."""
    codes = coded(distinct(family(rng)))
    assert len(np.unique(codes)) == MANY
    for half in (codes >> np.uint64(32), codes & np.uint64(2**32 - 1)):
        assert MANY - len(np.unique(half)) < 20


def test_every_bit_of_a_real_number_counts(coded, rng):
    """Each bit of each coordinate flipped, from points of all sizes, zero among them: -0 is not 0."""
    points = np.concatenate([np.zeros((1, 3)), rng.normal(size=(60, 3)) * 10.0 ** rng.integers(-20, 20, size=(60, 1))])
    words = points.astype(np.float32).view(np.uint32)
    flips = np.zeros((97, 3), np.uint32)
    flips[np.arange(96), np.arange(96) // 32] = np.uint32(1) << np.arange(96, dtype=np.uint32) % 32
    near = (words[:, None] ^ flips).reshape(-1, 3)
    codes = coded(near.view(np.float32))
    assert len(np.unique(near, axis=0)) == len(near)
    assert len(np.unique(codes)) == len(codes)


def test_equal_observations_share_a_code_wherever_they_stand(quick, rng):
    few = cells(rng, 5, 7, 7)
    which = rng.permutation(np.arange(24) % 5).reshape(6, 4)
    codes = np.asarray(quick(visits.code)(few[which]))
    assert codes.shape == (6, 4, 2)
    assert codes.dtype == np.uint32
    for k in range(5):
        assert len(np.unique(codes[which == k], axis=0)) == 1


def awkward_ends(rng, steps, envs):
    done = rng.random((steps, envs)) < 0.15
    done[:, 0] = False
    done[0, 1] = done[-1, 1] = done[2:4, 2] = True
    done[:, 3] = True
    return done


def few_grids(rng):
    """Three MiniGrid views, and each with one byte changed in one of two places."""
    out = np.repeat(cells(rng, 3, 7, 7), 3, 0)
    out[1::3, 3, 5, 0] ^= 1
    out[2::3, 6, 6, 2] ^= 1
    return out


def few_reals(rng):
    """Three vectors, each with its neighbour one bit away, and both zeros."""
    out = np.repeat(rng.normal(size=(4, 3)).astype(np.float32), 2, 0)
    out[6:, 1] = 0.0
    out[1::2, 1] = np.nextafter(out[1::2, 1], np.float32(np.inf))
    out[7, 1] = -0.0
    return out


@pytest.mark.parametrize("pool", [random_bytes, few_grids, few_reals], ids=lambda pool: pool.__name__)
def test_counts_are_those_of_a_list(quick, rollout_of, rng, pool):
    """Four rollouts in a row; one environment's episode spans them all."""
    steps, envs = 8, 6
    points = pool(rng)[:9]
    count = quick(visits.count)
    seen = visits.empty(envs, 4 * steps)
    past = [Visits() for _ in range(envs)]
    now, most = points[rng.integers(len(points), size=envs)], 0
    for _ in range(4):
        done = awkward_ends(rng, steps, envs)
        obs, ends = points[rng.integers(len(points), size=(2, steps, envs))]
        obs[0] = now
        rollout = rollout_of(obs, done, ends)
        seen, found = count(seen, rollout)
        after = np.asarray(rollout.next_obs)
        expected = [[past[n].step(obs[t, n], after[t, n], done[t, n]) for n in range(envs)] for t in range(steps)]
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(seen.filled, [len(one.past) for one in past])
        now, most = after[-1], max(most, np.max(expected))
    assert most >= 6
