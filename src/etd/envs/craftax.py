"""Craftax-Classic (Matthews et al., 2024): Crafter written anew in JAX, so that it runs on the device.

Seen in 63 x 63 pixels or as 1,345 numbers (``Symbolic``: the 7 x 9 tiles around the player in one-hot codes, what it
carries, how it fares); 17 actions, 22 achievements, 10,000 steps. Episodes are those of the package ``craftax``. What
differs from Crafter itself: the reward counts every new achievement of a step, not one at most; a tenth of the change
of health is added as there, but health stops at 0, so a fatal blow costs no more than the health there was; worlds are
generated otherwise, always with a diamond; and pictures lack Crafter's black edge of one pixel. So scores stand beside
Crafter's, but are not the same measure. ``NoLife`` leaves the health out of the reward.

The package draws a step's random numbers from a key that the caller gives. Here it comes from the state, as Crafter's
own come from its world: an episode is named by its start and its actions, and can be played again from them.
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
"""Crafter's names in Crafter's order; the package numbers them otherwise."""

# What can end an episode soonest is a walk into lava. World generation puts lava where mountain > 0.85, and mountain is
# at most 1.05 - (1 - d / 5) for d < 5 steps from the start: 0.85 at d = 4, so d = 5 is the nearest, and such worlds
# occur. Nothing else is as fast: creatures appear at least 10 steps away from the end of step 1 on, and coming closer
# by two a step, none strikes before step 6; hunger and thirst take hundreds of steps.
SHORTEST = 5
MAX_STEPS = 10_000
TILE = 16
"""Pixels along a tile of a picture before it is enlarged: the textures' own size."""
ENLARGED = 4

_NAMED = {
    f"Craftax-Classic-{seen}{end}-v1": (seen == "Pixels", not end)
    for seen in ("Pixels", "Symbolic")
    for end in ("", "-NoLife")
}
IDS = tuple(_NAMED)


@dataclass(frozen=True)
class Craftax:
    """The game by its id. Observations are [63, 63, 3] uint8 pixels or [1345] float32 numbers between 0 and 1."""

    name: str
    max_steps: int = MAX_STEPS

    @property
    def pixels(self) -> bool:
        return _NAMED[self.name][0]

    @property
    def life(self) -> bool:
        """Whether the reward has health in it."""
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
        # jaxlib 0.10.2 compiles the package's noise wrongly for a CPU where 16 worlds or more are one batch: at least
        # half of them are not those of their keys. One at a time they are right. On a GPU, ask the tests.
        alone = jax.default_backend() == "cpu"
        return (jax.custom_batching.sequential_vmap(self._start) if alone else self._start)(key)

    def _start(self, key: Key) -> tuple[PyTree, Array]:
        game = _game(self.pixels)
        obs, state = game.reset_env(jax.random.key_data(key), game.default_params)
        return _settled(state), self._seen(obs)

    def step(self, state: PyTree, action: Array, key: Key | None = None) -> tuple[PyTree, Transition]:
        """Deterministic: chance is in the state, and ``key`` is there for the protocol."""
        game = _game(self.pixels)
        params = game.default_params.replace(max_timesteps=self.max_steps)
        obs, after, reward, _, _ = game.step_env(chance(state), state, action, params)
        after = _settled(after)
        if not self.life:
            reward = after.achievements.sum() - state.achievements.sum()
        transition = Transition(
            next_obs=self._seen(obs),
            reward=reward.astype(jnp.float32),
            terminated=after.player_health <= 0,  # in lava it is 0, too
            truncated=after.timestep >= self.max_steps,
            fingerprint=self.fingerprint(after),
            achieved=after.achievements[_order()],
        )
        return after, transition

    def fingerprint(self, state: PyTree) -> Array:
        """A hash of the map, the creatures, the player, what it carries and has achieved. Clocks are left out (time of
        day, hunger and the like between two points, cooldowns, the age of plants), and so is chance."""
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
        # Every word times its own random number: a change anywhere moves the sum's high bits, which come down last.
        total = jnp.sum(words * (salt | 1), dtype=jnp.uint32)
        return total ^ (total >> 15)

    def render(self, state: PyTree) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """[576, 576, 3] the observation's picture in finer tiles, also where observations are numbers."""
        picture = np.asarray(_painter()(state)).round().astype(np.uint8)
        return picture.repeat(ENLARGED, 0).repeat(ENLARGED, 1)

    def _seen(self, obs: Array) -> Array:
        return jnp.round(255 * obs).astype(jnp.uint8) if self.pixels else obs.astype(jnp.float32)


def chance(state: PyTree) -> Array:
    """[2] uint32: the key of the next step, in the package's old form. The state's own draws the noise of the night."""
    return jax.random.key_data(named(jax.random.wrap_key_data(state.state_rng), "step"))


def make(name: str, max_steps: int = MAX_STEPS) -> Craftax:
    """The game of an id such as Craftax-Classic-Pixels-v1, or a sentence on why there is none."""
    if name not in _NAMED:
        raise unknown("environment", name, IDS, "See `etd list environments`.")
    return Craftax(name, max_steps)


# From the package ------------------------------------------------------------------------------------------------


def _settled(state: PyTree) -> PyTree:
    """The state with one type for every leaf: the package's starts and steps differ in which numbers are weakly typed,
    so that what is compiled for one would be compiled again for the other."""
    types = {"b": jnp.bool_, "i": jnp.int32, "u": jnp.uint32, "f": jnp.float32}
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, types[jnp.result_type(leaf).kind]), state)


@contextmanager
def _loading() -> Iterator[None]:
    """The package makes arrays when it is imported and when it loads its textures, which must not become part of what
    is being compiled just then; and it prints. The first time, half a minute goes into textures that it then keeps in
    a file of its own."""
    try:
        with jax.ensure_compile_time_eval(), redirect_stdout(io.StringIO()):
            yield
    except OSError as error:
        raise UserError(f"craftax cannot keep its textures ({error}). Install it where you may write.") from error


@lru_cache(maxsize=2)
def _game(pixels: bool) -> Any:
    """The package's environment, without its autoreset."""
    with _loading():
        from craftax.craftax_env import make_craftax_env_from_params

        return make_craftax_env_from_params(classic=True, symbolic=not pixels, auto_reset=False)


@lru_cache(maxsize=1)
def _painter() -> Any:
    """A compiled function of a state: its picture, [9 TILE, 9 TILE, 3] float32 from 0 to 255."""
    with _loading():
        from craftax.craftax_classic.renderer import make_craftax_pixel_renderer

        return jax.jit(make_craftax_pixel_renderer(TILE))


@lru_cache(maxsize=1)
def _order() -> np.ndarray:
    """[22] where the package keeps each of ACHIEVEMENTS."""
    with _loading():
        from craftax.craftax_classic.constants import Achievement

        return np.array([Achievement[name.upper()].value for name in ACHIEVEMENTS])
