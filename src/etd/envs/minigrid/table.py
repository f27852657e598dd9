"""Every level by its MiniGrid id: how it is generated, how long an episode may last, what ends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from etd.core.errors import unknown
from etd.core.types import Key
from etd.envs.minigrid.actions import Rule
from etd.envs.minigrid.keycorridor import key_corridor
from etd.envs.minigrid.lockedroom import locked_room
from etd.envs.minigrid.multiroom import multi_room
from etd.envs.minigrid.obstructedmaze import nine_rooms, two_rooms
from etd.envs.minigrid.rooms import Rooms
from etd.envs.minigrid.simple import door_key, empty, fetch, four_rooms, red_blue_doors
from etd.envs.minigrid.unlock import ROOMS as UNLOCK_ROOMS
from etd.envs.minigrid.unlock import unlock
from etd.envs.minigrid.world import World


@dataclass(frozen=True)
class Level:
    """One row of the table."""

    generate: Callable[[Key], World]
    width: int
    height: int
    max_steps: int
    rule: Rule = "goal"
    shortest: int = 1
    """A proven lower bound on the length of an episode, for any actions and any generated level."""
    see_through_walls: bool = False
    """Whether MiniGrid itself lets the agent see through the walls of this level."""
    farama: tuple[str, tuple[tuple[str, Any], ...]] | None = None
    """The id and options that create this level in MiniGrid, if not its own id without options."""


def _empties() -> dict[str, Level]:
    """From the start corner to the goal: size - 3 cells each way and one turn. From anywhere: one step."""
    levels = {}
    for size in (5, 6, 8, 16):
        limit = 4 * size**2
        levels[f"MiniGrid-Empty-{size}x{size}-v0"] = Level(
            partial(empty, size=size, anywhere=False), size, size, limit, "goal", 2 * (size - 3) + 1, True
        )
        if size < 8:
            levels[f"MiniGrid-Empty-Random-{size}x{size}-v0"] = Level(
                partial(empty, size=size, anywhere=True), size, size, limit, see_through_walls=True
            )
    return levels


def _door_keys() -> dict[str, Level]:
    """Pick up the key, turn to the door, toggle, two steps through it, turn, one step to the goal: the goal's row has
    no door and the key's cell is not the door's, so all seven are needed."""
    return {
        f"MiniGrid-DoorKey-{size}x{size}-v0": Level(partial(door_key, size=size), size, size, 10 * size**2, shortest=7)
        for size in (5, 6, 8, 16)
    }


def _others() -> dict[str, Level]:
    """Fetch, RedBlueDoors, FourRooms: the agent may start right in front of what ends the episode, so one step.

    LockedRoom: open a room, step into its doorway, pick up the key, turn around, cross the hallway (3 steps) to the
    door opposite, the nearest possible, unlock it, two steps to the goal: 1 + 1 + 1 + 2 + 3 + 1 + 2.
    """
    levels = {"MiniGrid-FourRooms-v0": Level(four_rooms, 19, 19, 100)}
    for size, objects in ((5, 2), (6, 2), (8, 3)):
        levels[f"MiniGrid-Fetch-{size}x{size}-N{objects}-v0"] = Level(
            partial(fetch, size=size, objects=objects), size, size, 5 * size**2, "fetch", see_through_walls=True
        )
    for size in (6, 8):
        levels[f"MiniGrid-RedBlueDoors-{size}x{size}-v0"] = Level(
            partial(red_blue_doors, size=size), 2 * size, size, 20 * size**2, "doors"
        )
    levels["MiniGrid-LockedRoom-v0"] = Level(locked_room, 19, 19, 190, shortest=11)
    return levels


def _multi_rooms() -> dict[str, Level]:
    """Each door takes a toggle and two steps, and between two doors there is at least one more turn or step, since
    they are on different sides of a room at least two cells wide: 3 (rooms - 1) + (rooms - 2)."""
    levels = {}
    # MiniGrid's N4-S5-v0 has six rooms; its v1 has four, as the name says.
    for name, rooms, largest in (("N2-S4-v0", 2, 4), ("N4-S5-v0", 6, 5), ("N4-S5-v1", 4, 5), ("N6-v0", 6, 10)):
        levels[f"MiniGrid-MultiRoom-{name}"] = Level(
            partial(multi_room, rooms=rooms, largest=largest), 25, 25, 20 * rooms, shortest=4 * rooms - 5
        )
    return levels


def _key_corridors() -> dict[str, Level]:
    """Open a left room, step into its doorway, pick up the key, turn, cross the corridor (room - 2 steps), unlock,
    drop the key, step into the doorway, pick up the ball: 8 + room - 2."""
    levels = {}
    for room, rows in ((3, 1), (3, 2), (3, 3), (4, 3), (5, 3), (6, 3)):
        size = Rooms(room, 3, rows)
        levels[f"MiniGrid-KeyCorridorS{room}R{rows}-v0"] = Level(
            partial(key_corridor, room_size=room, rows=rows), size.width, size.height, 30 * room**2, "pickup", room + 6
        )
    return levels


def _unlocks() -> dict[str, Level]:
    """Unlock: turn to the key (no start faces it), pick it up, turn away from its cell, toggle: 4. With a box, also
    step into the doorway, drop the key, pick up the box: 7. With a ball in the way, also pick it up, drop it and step
    to where it was, which saves the turn: 9."""
    width, height = UNLOCK_ROOMS.width, UNLOCK_ROOMS.height
    rows = (("Unlock", False, False, 288, 4), ("UnlockPickup", True, False, 288, 7))
    return {
        f"MiniGrid-{name}-v0": Level(
            partial(unlock, box=box, blocked=blocked), width, height, steps, "pickup" if box else "open", shortest
        )
        for name, box, blocked, steps, shortest in (*rows, ("BlockedUnlockPickup", True, True, 576, 9))
    }


def _obstructed_mazes() -> dict[str, Level]:
    """As in UnlockPickup: 7; with the key in a box, also toggle that: 8; with a ball in the way, pick it up, drop it
    and step to where it was, which saves the turn: 10; from the centre room, open its door and step into it: 12."""
    levels = {}
    pairs = (("1Dl", False, False, 7), ("1Dlh", True, False, 8), ("1Dlhb", True, True, 10))
    for name, boxed, blocked, shortest in pairs:
        levels[f"MiniGrid-ObstructedMaze-{name}-v0"] = Level(
            partial(two_rooms, boxed=boxed, blocked=blocked), 11, 6, 4 * 2 * 36, "pickup", shortest
        )
    side, centre = (2, 1), (1, 1)
    rows: list[tuple[str, tuple[int, int], bool, bool, int, int, int]] = [
        ("2Dl-v0", side, False, False, 1, 4, 7),
        ("2Dlh-v0", side, True, False, 1, 4, 8),
    ]
    for version in ("v0", "v1"):
        rows += [
            (f"2Dlhb-{version}", side, True, True, 1, 4, 10),
            (f"1Q-{version}", centre, True, True, 1, 5, 12),
            (f"2Q-{version}", side, True, True, 2, 11, 10),
            # The start room in gym-minigrid 1.0, the package used by the paper.
            (f"2Q-Centre-{version}", centre, True, True, 2, 11, 12),
            (f"Full-{version}", centre, True, True, 4, 25, 12),
        ]
    for name, room, boxed, blocked, quarters, visits, shortest in rows:
        level = partial(
            nine_rooms, agent_room=room, boxed=boxed, blocked=blocked, quarters=quarters, keys_last=name.endswith("v1")
        )
        original = ("MiniGrid-ObstructedMaze-" + name.replace("-Centre", ""), (("agent_room", room),))
        levels[f"MiniGrid-ObstructedMaze-{name}"] = Level(
            level, 16, 16, 4 * visits * 36, "pickup", shortest, farama=original if "Centre" in name else None
        )
    return levels


LEVELS: dict[str, Level] = {
    **_empties(),
    **_door_keys(),
    **_multi_rooms(),
    **_key_corridors(),
    **_obstructed_mazes(),
    **_unlocks(),
    **_others(),
}
IDS: list[str] = list(LEVELS)


def find(name: str) -> Level:
    """The level called ``name``; a UserError suggests the closest name if there is none."""
    if name not in LEVELS:
        raise unknown("MiniGrid level", name, LEVELS, "All of them are in etd.envs.minigrid.IDS.")
    return LEVELS[name]
