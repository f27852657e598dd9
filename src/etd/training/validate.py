"""What can be wrong with an experiment: values out of range, parts that do not fit together, a broken environment."""

from __future__ import annotations

import inspect
import math
import types
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal, Union, get_args, get_origin

from etd.agent.ppo import PPO
from etd.bonuses import Bonus, LearnedBonus, Mixture
from etd.core import plugins
from etd.core.errors import UserError
from etd.core.limits import SEEDS, is_finite
from etd.core.plugins import Unavailable
from etd.envs import custom
from etd.envs.custom import Factory
from etd.training.config import bonus_name, hints_of, part_hint, typed, unavailable, walk
from etd.training.experiment import Experiment


def check(experiment: Experiment, make: bool = True) -> Experiment:
    """The experiment with every number in its field's type, or a UserError for values of another type, out of range or
    that do not fit together. Makes the environment once, to catch a wrong id early, unless ``make`` is off."""
    for one in unavailable(check_kind(experiment)):
        raise UserError(one.why)
    experiment = checked(experiment)
    _check_hash(experiment)
    _check_counts(experiment)
    if make:
        _check_env(experiment)
    for where, part in [("ppo", experiment.ppo), *parts(experiment.bonus, "bonus.")]:
        if not isinstance(part, PPO | LearnedBonus):
            continue
        where = where.rstrip(".")
        check_minibatch(f"{where}.minibatch", part.minibatch, experiment.num_envs, experiment.rollout_steps)
        if isinstance(part, LearnedBonus) and "features" in part.needs and part.features != experiment.ppo.features:
            raise UserError(
                f"{where} reads the policy's embedding, so {where}.features = {part.features} must equal ppo.features "
                f"= {experiment.ppo.features}; or set {where}.source=own."
            )
    return experiment


def _check_env(experiment: Experiment) -> None:
    if experiment.env.custom is not None and experiment.env.host() is None:
        custom.verify(experiment.env.make())
    spec = experiment.env.spec
    reason = experiment.bonus.refusal(spec)
    if reason:
        raise UserError(f"{bonus_name(experiment.bonus)} cannot be used with {spec.name}: {reason}")


def check_minibatch(name: str, size: int, num_envs: int, rollout_steps: int) -> None:
    """Raise a UserError if a rollout cannot be split into minibatches."""
    count = num_envs * rollout_steps
    if count % size:
        raise UserError(
            f"{name} = {size} does not divide num_envs x rollout_steps = {num_envs} x {rollout_steps} = {count}. "
            f"Choose a divisor, such as {_divisor(count, size)}."
        )


def check_kind(experiment: Any) -> Experiment:
    """The experiment, or a UserError if it is none."""
    if not isinstance(experiment, Experiment):
        raise UserError(f"{plugins.label(type(experiment))} is not an etd.Experiment.")
    return experiment


def _check_hash(experiment: Experiment) -> None:
    """Compiled functions are cached by experiment, so every value must be hashable."""
    for path, value in walk(experiment, ""):
        if not is_dataclass(value) and not isinstance(value, tuple):
            try:
                hash(value)
            except TypeError as error:
                raise UserError(
                    f"{path} is a {type(value).__name__}, which cannot be hashed; use numbers, strings, tuples or "
                    "frozen dataclasses."
                ) from error


def checked(value: Any, where: str = "") -> Any:
    """An experiment or a part of one with every number in its field's type, or a UserError for the first field that
    cannot be or is out of range. Parts may be unavailable."""
    changed = {}
    for f in fields(value):
        inner, path = getattr(value, f.name), f"{where}{f.name}"
        found = _of_type(type(value), f.name, inner, path)
        _check_range(found, path, f.metadata.get("limits"))
        if isinstance(found, tuple):
            parts = tuple(_checked_part(part, f"{path}.{index}.") for index, part in enumerate(found))
            found = found if all(a is b for a, b in zip(parts, found, strict=True)) else parts
        else:
            found = _checked_part(found, f"{path}.")
        if found is not inner and f.init:
            changed[f.name] = found
    return replace(value, **changed) if changed else value


def _checked_part(part: Any, where: str) -> Any:
    return checked(part, where) if is_dataclass(part) and not isinstance(part, type | Factory) else part


def _of_type(kind: type, name: str, value: Any, path: str) -> Any:
    """``value`` in the type of its field, finite and in 32 bits. What a class outside etd declares is its own
    business."""
    owner = next((one for one in kind.__mro__ if name in inspect.get_annotations(one)), kind)
    if owner.__module__.partition(".")[0] != "etd":
        return value
    hint = hints_of(owner).get(name, Any)
    slot = part_hint(hint)
    if slot is not None and not isinstance(value, slot | Unavailable):
        raise UserError(f"{path} is {plugins.label(type(value))}, not a {slot.__name__}. Pass an object of that kind.")
    if get_origin(hint) is tuple and not isinstance(value, tuple):
        raise UserError(f"{path} takes a tuple, not {value!r}.")
    found = typed(hint, value, path) if _is_plain(hint) else value
    if isinstance(found, float) and not is_finite(found):
        raise UserError(f"{path} = {found} is out of range: it must be a finite number.")
    if isinstance(found, int) and abs(found) >= SEEDS:
        raise UserError(f"{path} = {found} is out of range: it must be below {SEEDS}.")
    return found


def _is_plain(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return all(_is_plain(one) for one in get_args(hint) if one is not types.NoneType)
    return get_origin(hint) is Literal or hint in (bool, int, float, str)


def _check_range(value: Any, path: str, limits: Any) -> None:
    try:
        allowed = limits is None or limits.allow(value)
    except TypeError as error:
        raise UserError(f"{path} takes a number, not {value!r}.") from error
    if not allowed:
        raise UserError(f"{path} = {value} is out of range: it must be {limits}.")


def _check_counts(experiment: Experiment) -> None:
    """Seeds, steps and rows are counted in int32."""
    batch, whole = experiment.steps_per_iteration, experiment.iterations * experiment.steps_per_iteration
    for words, count, most in (
        ("seed + seeds", experiment.seed + experiment.seeds, SEEDS),
        ("num_envs x rollout_steps", batch, SEEDS - 1),
        ("steps, in whole iterations,", whole, SEEDS - 1),
    ):
        if count > most:
            raise UserError(f"{words} is {count}, which is out of range: it must be at most {most}.")


def parts(bonus: Bonus, where: str = "") -> list[tuple[str, Bonus]]:
    """The bonus, or the parts of a mixture, with the paths of their fields."""
    if not isinstance(bonus, Mixture):
        return [(where, bonus)]
    return [
        (f"{where}terms.{i}.factors.{j}.", factor)
        for i, term in enumerate(bonus.terms)
        for j, factor in enumerate(term.factors)
    ]


def _divisor(number: int, near: int) -> int:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return min((*small, *(number // d for d in small)), key=lambda d: (abs(d - near), d))
