"""An experiment as the command that trains it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from etd.bonuses import BONUSES, Mixture
from etd.core.errors import UserError
from etd.envs import Task
from etd.training import presets
from etd.training.config import bonus_name, settings, to_dict
from etd.training.experiment import Experiment


def command(
    experiment: Experiment, out: Path | None = None, until: float | None = None, imports: Iterable[str] = ()
) -> str:
    """The command line that trains this experiment: the preset's environment and bonus, every field that differs, and
    what else was asked. Interruptions do not matter, since resuming changes nothing."""
    bonus, env = bonus_name(experiment.bonus), experiment.env
    named = bonus if isinstance(experiment.bonus, Mixture) or bonus in BONUSES else experiment.bonus
    try:
        preset = presets.choose(Task(env.id, env.custom, normalise=bool(env.family and env.family.normalise)), named)
    except UserError:  # there is no preset for this pair, or its module is missing
        preset = Experiment()
    words = ["etd", "train", "--env", env.id, "--bonus", bonus]
    own = {f"env.{name}": value for name, value in settings(env.custom)}
    found = {**dict(_differences(to_dict(preset), to_dict(experiment))), **own}
    for path, value in found.items():
        if path not in ("env.id", "bonus.class") and not path.startswith("env.custom"):
            path = path.removesuffix(".class")
            words += [f"--{path}", str(value)] if path in ("steps", "seeds", "seed") else ["--set", f"{path}={value}"]
    for module in imports:
        if not any(f"{module}:" in word for word in words):  # naming a class imports its module
            words += ["--import", module]
    if until is not None:
        words += ["--until", f"{until:g}"]
    return shlex.join(words if out is None else [*words, "--out", str(out)])


def _differences(base: Any, value: Any, where: str = "") -> list[tuple[str, Any]]:
    """(path, value) of every leaf field in which two experiments, as plain data, differ."""
    if isinstance(value, dict):
        known = base if isinstance(base, dict) else {}
        return [pair for name in value for pair in _differences(known.get(name), value[name], f"{where}.{name}")]
    if isinstance(value, list) and isinstance(base, list) and len(base) == len(value):
        pairs = enumerate(zip(base, value, strict=True))
        return [pair for index, (old, new) in pairs for pair in _differences(old, new, f"{where}.{index}")]
    return [] if base == value else [(where.lstrip("."), value)]
