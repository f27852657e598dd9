"""The paper's hyperparameter tables, as differences from ``Experiment``'s defaults.

A preset is named GROUP-BONUS. The groups are the two of the paper's MiniGrid tables: ``minigrid`` for MultiRoom,
DoorKey and KeyCorridor, ``obstructedmaze`` for ObstructedMaze. ``noisy`` adds Gaussian noise with the standard
deviation 0.1 of the authors' code, which is our default reading; ``noisier`` with the variance 0.1 of the paper's text.
"""

from __future__ import annotations

from dataclasses import replace

from etd.agent.ppo import PPO
from etd.bonuses import ETD, NoBonus
from etd.core.errors import UserError, unknown
from etd.envs import Task
from etd.train.experiment import Experiment
from etd.train.reward import Mix

_MINIGRID = Experiment()
_OBSTRUCTED = Experiment(
    env=Task("MiniGrid-ObstructedMaze-2Dlh-v0"),
    bonus=ETD(epochs=4, norm="layer"),
    ppo=PPO(entropy=1e-2, norm="layer"),
    mix=Mix(extrinsic=10.0),
    steps=5_000_000,
)

_NOISY = replace(_MINIGRID, env=Task("MiniGrid-DoorKey-16x16-v0", noise=0.1), steps=3_000_000)

PRESETS: dict[str, Experiment] = {
    "minigrid-etd": _MINIGRID,
    "minigrid-none": replace(_MINIGRID, bonus=NoBonus()),
    "obstructedmaze-etd": _OBSTRUCTED,
    "obstructedmaze-none": replace(_OBSTRUCTED, bonus=NoBonus()),
    "noisy-etd": _NOISY,
    "noisier-etd": replace(_NOISY, env=replace(_NOISY.env, noise=0.1**0.5)),
}


def find(name: str) -> Experiment:
    """The preset of that name."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS, "See `etd list`.")
    return PRESETS[name]


def choose(env: str, bonus: str) -> Experiment:
    """The paper's settings for this environment and bonus."""
    group = "obstructedmaze" if "ObstructedMaze" in env else "minigrid"
    name = f"{group}-{bonus}"
    if name not in PRESETS:
        raise UserError(f"The paper has no settings for bonus {bonus!r} there. Choose a --preset; see `etd list`.")
    preset = PRESETS[name]
    return replace(preset, env=replace(preset.env, id=env))
