"""Craftax-Classic (Matthews et al., 2024): Crafter reimplemented in JAX, so it runs on the device.

Observations are 63 x 63 pixels or 1,345 numbers (``Symbolic``: the 7 x 9 tiles around the player as one-hot codes, its
inventory and its vital signs); 17 actions, 22 achievements, 10,000 steps. Episodes are those of the ``craftax``
package. Differences from Crafter itself: the reward counts every new achievement of a step, not at most one; a tenth
of the change in health is added as in Crafter, but health stops at 0, so a fatal blow costs no more than the remaining
health; worlds are generated differently, always with a diamond; and images lack Crafter's black border of one pixel.
So scores are comparable to Crafter's, but not the same measure. ``NoLife`` leaves health out of the reward.

The package draws a step's random numbers from a key that the caller passes. Here the key comes from the state, as
Crafter's randomness comes from its world: an episode is determined by its start and its actions and can be replayed
from them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from etd.core.errors import UserError, unknown
from etd.core.keys import named
from etd.core.types import Array, Discrete, EnvSpec, Key, PyTree, Transition

ACHIEVEMENTS = (
    "collect_coal",
    "collect_diamond",
    "collect_drink",
    "collect_iron",
    "collect_sapling",
    "collect_stone",
    "collect_wood",
    "defeat_skeleton",
    "defeat_zombie",
    "eat_cow",
    "eat_plant",
    "make_iron_pickaxe",
    "make_iron_sword",
    "make_stone_pickaxe",
    "make_stone_sword",
    "make_wood_pickaxe",
    "make_wood_sword",
    "place_furnace",
    "place_plant",
    "place_stone",
    "place_table",
    "wake_up",
)
"""Crafter's names in Crafter's order; the package numbers them differently."""

# The fastest way to end an episode is to walk into lava. World generation puts lava where mountain > 0.85, and mountain
# is at most 1.05 - (1 - d / 5) for d < 5 steps from the start: 0.85 at d = 4, so the nearest lava is at d = 5, and such
# worlds occur. Nothing else is as fast: creatures appear at least 10 steps away from the end of step 1 on and approach
# by two steps at a time, so none strikes before step 6; hunger and thirst take hundreds of steps.
SHORTEST = 5
MAX_STEPS = 10_000
TILE = 16
"""Pixels per tile side in a picture before enlarging: the textures' own size."""
ENLARGED = 4

_NAMED = {
    f"Craftax-Classic-{seen}{end}-v1": (seen == "Pixels", not end)
    for seen in ("Pixels", "Symbolic")
    for end in ("", "-NoLife")
}
IDS = tuple(_NAMED)


@dataclass(frozen=True)
class Craftax:
    """The game by its id. Observations are [63, 63, 3] uint8 pixels or [1345] float32 values between 0 and 1."""

    name: str
    max_steps: int = MAX_STEPS

    @property
    def pixels(self) -> bool:
        return _NAMED[self.name][0]

    @property
    def life(self) -> bool:
        """Whether the reward includes health."""
        return _NAMED[self.name][1]

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            name=self.name,
            obs_shape=(63, 63, 3) if self.pixels else (1345,),
            obs_dtype="uint8" if self.pixels else "float32",
            obs_high=255.0 if self.pixels else 1.0,
            action=Discrete(17),
            max_steps=self.max_steps,
            shortest=min(SHORTEST, self.max_steps),
            kind="pixels" if self.pixels else "vector",
            achievements=ACHIEVEMENTS,
            can_succeed=False,
        )

    def reset(self, key: Key) -> tuple[PyTree, Array]:
        # jaxlib 0.10.2 miscompiles the package's noise on a CPU for batches of 16 or more worlds: at least half of
        # them are not the worlds of their keys. One at a time they are correct. The tests check this on a GPU.
        alone = jax.default_backend() == "cpu"
        return (jax.custom_batching.sequential_vmap(self._start) if alone else self._start)(key)

    def _start(self, key: Key) -> tuple[PyTree, Array]:
        game = _game(self.pixels)
        obs, state = game.reset_env(jax.random.key_data(key), game.default_params)
        return _settled(state), self._seen(obs)

    def step(self, state: PyTree, action: Array, key: Key | None = None) -> tuple[PyTree, Transition]:
        """Deterministic given the state, which holds the random key; ``key`` exists only for the protocol."""
        game = _game(self.pixels)
        params = game.default_params.replace(max_timesteps=self.max_steps)
        obs, after, reward, _, _ = game.step_env(chance(state), state, action, params)
        after = _settled(after)
        if not self.life:
            reward = after.achievements.sum() - state.achievements.sum()
        transition = Transition(
            next_obs=self._seen(obs),
            reward=reward.astype(jnp.float32),
            terminated=after.player_health <= 0,  # also 0 in lava
            truncated=after.timestep >= self.max_steps,
            fingerprint=self.fingerprint(after),
            achieved=after.achievements[_order()],
        )
        return after, transition

    def fingerprint(self, state: PyTree) -> Array:
        """A hash of the map, the creatures, the player, its inventory and its achievements. Clocks are left out (time
        of day, fractional hunger and the like, cooldowns, the age of plants), and so is the random key."""
        needs = (state.player_health, state.player_food, state.player_drink, state.player_energy, state.is_sleeping)
        player = (state.player_position, state.player_direction, needs, state.inventory, state.achievements)
        alive = [
            (mobs.mask, mobs.mask * mobs.health, mobs.mask[:, None] * mobs.position)
            for mobs in (state.zombies, state.cows, state.skeletons, state.arrows)
        ]
        flying = state.arrows.mask[:, None] * state.arrow_directions
        parts = jax.tree.leaves((state.map, player, alive, flying))
        words = jnp.concatenate([jnp.ravel(part).astype(jnp.uint32) for part in parts])
        salt = np.random.default_rng(words.size).integers(1 << 32, size=words.size, dtype=np.uint32)
        # Each word is multiplied by its own random number: any change affects the sum's high bits, folded down below.
        total = jnp.sum(words * (salt | 1), dtype=jnp.uint32)
        return total ^ (total >> 15)

    def render(self, state: PyTree) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """[576, 576, 3] the pixel observation with finer tiles, also for symbolic observations."""
        picture = np.asarray(_painter()(state)).round().astype(np.uint8)
        return picture.repeat(ENLARGED, 0).repeat(ENLARGED, 1)

    def _seen(self, obs: Array) -> Array:
        return jnp.round(255 * obs).astype(jnp.uint8) if self.pixels else obs.astype(jnp.float32)


def chance(state: PyTree) -> Array:
    """[2] uint32: the next step's key, in the package's old format. The state's own key draws the night's noise."""
    return jax.random.key_data(named(jax.random.wrap_key_data(state.state_rng), "step"))


def make(name: str, max_steps: int = MAX_STEPS) -> Craftax:
    """The game with an id such as Craftax-Classic-Pixels-v1; a UserError if there is none."""
    if name not in _NAMED:
        raise unknown("environment", name, IDS, "See `etd list environments`.")
    return Craftax(name, max_steps)


# From the package ------------------------------------------------------------------------------------------------


def _settled(state: PyTree) -> PyTree:
    """The state with a fixed type for every leaf: the package's reset and step differ in which numbers are weakly
    typed, so code compiled for one would be compiled again for the other."""
    types = {"b": jnp.bool_, "i": jnp.int32, "u": jnp.uint32, "f": jnp.float32}
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, types[jnp.result_type(leaf).kind]), state)


@contextmanager
def _loading() -> Iterator[None]:
    """Keep the package's imports out of the current trace and off stdout: it creates arrays and prints when imported
    and when it loads its textures. The first time it spends half a minute on textures, which it then caches in a
    file."""
    try:
        with jax.ensure_compile_time_eval(), redirect_stdout(io.StringIO()):
            yield
    except OSError as error:
        raise UserError(f"craftax cannot cache its textures ({error}). Install it in a writable directory.") from error


@lru_cache(maxsize=2)
def _game(pixels: bool) -> Any:
    """The package's environment, without its autoreset."""
    with _loading():
        from craftax.craftax_env import make_craftax_env_from_params

        return make_craftax_env_from_params(classic=True, symbolic=not pixels, auto_reset=False)


@lru_cache(maxsize=1)
def _painter() -> Any:
    """A compiled function from a state to its picture, [9 TILE, 9 TILE, 3] float32 from 0 to 255."""
    with _loading():
        from craftax.craftax_classic.renderer import make_craftax_pixel_renderer

        return jax.jit(make_craftax_pixel_renderer(TILE))


@lru_cache(maxsize=1)
def _order() -> np.ndarray:
    """[22] the package's index of each of ACHIEVEMENTS."""
    with _loading():
        from craftax.craftax_classic.constants import Achievement

        return np.array([Achievement[name.upper()].value for name in ACHIEVEMENTS])
