"""What can be wrong with an experiment: values out of range, parts that do not fit together, a broken environment."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

from etd.agent.ppo import PPO
from etd.bonuses import Bonus, LearnedBonus, Mixture
from etd.core.errors import UserError
from etd.envs import custom
from etd.envs.custom import Factory
from etd.lab.runs.config import bonus_name, unavailable, walk
from etd.training.experiment import Experiment


def check(experiment: Experiment) -> Experiment:
    """Raise a UserError for values out of range or that do not fit together. Makes the environment once, to catch a
    wrong id early."""
    for one in unavailable(experiment):
        raise UserError(one.why)
    check_ranges(experiment)
    _check_hash(experiment)
    if experiment.env.custom is not None and experiment.env.host() is None:
        custom.verify(experiment.env.make())
    spec = experiment.env.spec
    reason = experiment.bonus.refusal(spec)
    if reason:
        raise UserError(f"{bonus_name(experiment.bonus)} cannot be used with {spec.name}: {reason}")
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


def check_minibatch(name: str, size: int, num_envs: int, rollout_steps: int) -> None:
    """Raise a UserError if a rollout cannot be split into minibatches."""
    count = num_envs * rollout_steps
    if count % size:
        raise UserError(
            f"{name} = {size} does not divide num_envs x rollout_steps = {num_envs} x {rollout_steps} = {count}. "
            f"Choose a divisor, such as {_divisor(count, size)}."
        )


def check_ranges(value: Any, where: str = "") -> None:
    """Raise a UserError for a value out of range, in an experiment or a part of one, whether or not all parts of it are
    available."""
    for f in fields(value):
        inner, path = getattr(value, f.name), f"{where}{f.name}"
        limits = f.metadata.get("limits")
        if limits is not None and not limits.allow(inner):
            raise UserError(f"{path} = {inner} is out of range: it must be {limits}.")
        if isinstance(inner, float) and not math.isfinite(inner) and _is_ours(value):
            raise UserError(f"{path} = {inner} is out of range: it must be finite.")
        for index, part in enumerate(inner if isinstance(inner, tuple) else (inner,)):
            if is_dataclass(part) and not isinstance(part, type | Factory):
                check_ranges(part, f"{path}.{index}." if isinstance(inner, tuple) else f"{path}.")


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


def _is_ours(part: Any) -> bool:
    """Whether its class is etd's, none of whose fields is ever infinite."""
    return type(part).__module__.startswith("etd.")


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
    return min([*small, *(number // d for d in reversed(small))], key=lambda d: abs(d - near))
