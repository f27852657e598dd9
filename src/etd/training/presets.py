"""The paper's hyperparameter tables, as differences from a base.

A preset is named GROUP-BONUS. The groups are those of the paper's tables: ``minigrid`` for MultiRoom, DoorKey and
KeyCorridor (and our mazes), ``obstructedmaze``, ``crafter``, ``miniworld`` and ``control``. Settings missing from a
method's table are ETD's, as the paper says; a method that the paper does not run, or has no table for, uses all of
ETD's settings. ``noisy`` adds Gaussian noise with standard deviation 0.1, as in the authors' code, our default reading;
``noisier`` with variance 0.1, as in the paper's text.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from etd.agent.ppo import PPO
from etd.bonuses import AGAC, BONUSES, Bonus, LearnedBonus, Mixture
from etd.bonuses import find as find_bonus
from etd.bonuses.mixture import parse
from etd.core import plugins
from etd.core.errors import UserError, unknown
from etd.envs import Task
from etd.training.experiment import Experiment
from etd.training.reward import Mix


@dataclass(frozen=True)
class Changes:
    """A method's differences from its group."""

    model: Mapping[str, Any] = field(default_factory=dict)
    ppo: Mapping[str, Any] = field(default_factory=dict)
    mix: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """The settings of ETD in a group, and what other methods change."""

    base: Experiment
    model: Mapping[str, Any]
    """fields of every learned bonus"""
    methods: Mapping[str, Changes]

    def preset(self, name: str) -> Experiment:
        kind = find_bonus(name)
        changes = self.methods.get(name, Changes())
        model = self._model(kind)
        if kind is AGAC:
            model["learning_rate"] = 0.3 * self.base.ppo.learning_rate
        return replace(
            self.base,
            bonus=plugins.construct(kind, {**model, **changes.model}),
            ppo=replace(self.base.ppo, **changes.ppo),
            mix=replace(self.base.mix, **changes.mix),
            **changes.run,
        )

    def _model(self, kind: type[Bonus]) -> dict[str, Any]:
        """The group's settings for a learned bonus's model. Fields that a user's own class redeclares keep their
        defaults."""
        if not issubclass(kind, LearnedBonus):
            return {}
        bases = kind.__mro__[: kind.__mro__.index(LearnedBonus)] if kind not in BONUSES.values() else ()
        declared = {name for base in bases for name in inspect.get_annotations(base)}
        return {name: value for name, value in self.model.items() if name not in declared}


GROUPS: dict[str, Group] = {
    "minigrid": Group(
        Experiment(),
        {"epochs": 8, "norm": "batch"},
        {
            "noveld": Changes({"epochs": 4}, {"entropy_coef": 1e-2}, {"intrinsic": 3e-2}),
            "deir": Changes({"epochs": 4}, {"entropy_coef": 1e-2}),
            "count": Changes({}, {"entropy_coef": 1e-2}),
            "ec": Changes({}, {"entropy_coef": 1e-2}),
            "e3b": Changes({}, {"entropy_coef": 1e-2}),
            "rnd": Changes({}, {"entropy_coef": 1e-2}, {"intrinsic": 3e-3}),
        },
    ),
    "obstructedmaze": Group(
        Experiment(
            env=Task("MiniGrid-ObstructedMaze-2Dlh-v0"),
            ppo=PPO(entropy_coef=1e-2, norm="layer"),
            mix=Mix(extrinsic=10.0),
            steps=5_000_000,
        ),
        {"epochs": 4, "norm": "layer"},
        {
            "noveld": Changes({"epochs": 3}, {"learning_rate": 1e-4}, {"intrinsic": 3e-3}),
            "deir": Changes(
                {"epochs": 3}, {"learning_rate": 1e-4, "entropy_coef": 5e-4}, {"intrinsic": 1e-3}, {"num_envs": 64}
            ),
            "count": Changes({}, {"entropy_coef": 5e-4}, {"intrinsic": 1e-3}),
        },
    ),
    "crafter": Group(
        Experiment(
            env=Task("Crafter-v0"),
            ppo=PPO(entropy_coef=1e-2, norm="layer", latent=256),
            steps=1_000_000,
        ),
        {"epochs": 4, "norm": "layer", "learning_rate": 1e-4},
        {},
    ),
    "miniworld": Group(
        Experiment(
            env=Task("MiniWorld-MazeS3-v0"),
            ppo=PPO(entropy_coef=1e-2, norm="layer", latent=256),
            mix=Mix(extrinsic=10.0),
            steps=1_000_000,
        ),
        {"epochs": 16, "norm": "layer", "learning_rate": 1e-4},
        {
            "noveld": Changes({"epochs": 4}, {}, {"extrinsic": 1.0}),
            "deir": Changes({"epochs": 4}, {}, {"extrinsic": 1.0}),
        },
    ),
    "control": Group(
        Experiment(
            env=Task("dmc:cartpole-swingup_sparse"),
            ppo=PPO(entropy_coef=1e-2, norm="layer", latent=256, features=256),
            steps=1_000_000,
        ),
        {"epochs": 4, "norm": "layer", "features": 256},
        {},
    ),
}
"""The paper gives no width for vector observations; 256 is from the authors' script."""

PRESETS: dict[str, Experiment] = {
    f"{group}-{name}": settings.preset(name)
    for group, settings in GROUPS.items()
    for name, kind in BONUSES.items()
    if kind is not Mixture and not (group == "control" and kind is AGAC)  # needs discrete actions
}

for _name in ("etd", "noveld", "deir", "e3b", "none"):
    _clean = replace(PRESETS[f"minigrid-{_name}"], env=Task("MiniGrid-DoorKey-16x16-v0", noise=0.1), steps=3_000_000)
    PRESETS[f"noisy-{_name}"] = _clean
    PRESETS[f"noisier-{_name}"] = replace(_clean, env=replace(_clean.env, noise=0.1**0.5))

_deir = PRESETS["obstructedmaze-deir"]
PRESETS["obstructedmaze-deir-author"] = replace(
    _deir,
    env=Task("MiniGrid-ObstructedMaze-Full-v0"),
    bonus=replace(_deir.bonus, learning_rate=1e-4, minibatch=2048),  # type: ignore[call-arg]
    ppo=replace(
        _deir.ppo, minibatch=2048, epochs=3, value_clip=0.2, advantage_norm="none", features=256, head_norm="none"
    ),
    mix=replace(_deir.mix, momentum=0.99),
    rollout_steps=256,
    steps=60_000_000,
)
"""What DEIR's author recommends for ObstructedMaze-Full, as an alternative to the settings of ETD's paper."""


_etd = PRESETS["minigrid-etd"]
PRESETS["keycorridor-etd"] = replace(
    _etd, env=Task("MiniGrid-KeyCorridorS6R3-v0"), mix=replace(_etd.mix, extrinsic=10.0), steps=5_000_000
)
"""Solved KeyCorridorS6R3 with ten of ten seeds, against six with the paper's settings; see results/keycorridor."""


def find(name: str) -> Experiment:
    """The preset called ``name``."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS, "See `etd list presets`.")
    return PRESETS[name]


def group_of(task: Task) -> str:
    """The group of presets for an environment: its family's, or the one for its kind of observation."""
    if task.family is not None and task.family.presets:
        return task.family.presets
    return {"pixels": "crafter", "grid": "minigrid"}.get(task.spec.kind, "control")


def choose(env: Any, bonus: Any = "etd") -> Experiment:
    """The paper's settings for this environment and bonus, each a name or an object.

    A mixture uses the settings of its first part; each part keeps its own model's. A bonus given as an object is used
    as is.
    """
    task = Task.of(env)
    group = GROUPS[group_of(task)]
    if isinstance(bonus, Bonus):
        name = next((name for name, kind in BONUSES.items() if type(bonus) is kind and kind is not Mixture), "etd")
        return replace(group.preset(name), bonus=bonus, env=task)
    if isinstance(bonus, type):
        if not issubclass(bonus, Bonus):
            raise UserError(f"{plugins.label(bonus)} is not a Bonus. Derive it from etd.Bonus or etd.LearnedBonus.")
        return replace(group.base, bonus=plugins.construct(bonus, group._model(bonus)), env=task)
    if not isinstance(bonus, str):
        raise UserError(f"{bonus!r} is not a bonus. Pass a name, a Bonus or its class.")

    def preset(name: str) -> Experiment:
        if find_bonus(name) is Mixture:
            raise UserError("Write a mixture as a sum or product of other bonuses, such as 'etd + 0.5*rnd'.")
        return group.preset(name)

    found: dict[int, Experiment] = {}

    def part(name: str) -> Bonus:
        experiment = preset(name)
        found.setdefault(0, experiment)
        return experiment.bonus

    mixed = parse(bonus, part)
    return replace(found[0], bonus=mixed, env=task)
