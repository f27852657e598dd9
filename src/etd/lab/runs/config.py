"""Experiments as plain data and back: for files, for the command line's typed overrides, and for range checks."""

from __future__ import annotations

import ast
from dataclasses import fields, is_dataclass, replace
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from etd.bonuses import BONUSES, Bonus, LearnedBonus, Mixture
from etd.core.errors import UserError, unknown
from etd.train.experiment import Experiment


def to_dict(value: Any) -> Any:
    """Nested dictionaries of numbers, strings and booleans; a bonus carries its registered name."""
    if isinstance(value, tuple):
        return [to_dict(part) for part in value]
    if not is_dataclass(value):
        return value
    data = {f.name: to_dict(getattr(value, f.name)) for f in fields(value)}
    return {"name": _registered(value), **data} if isinstance(value, Bonus) else data


def from_dict(data: dict[str, Any]) -> Experiment:
    """The experiment that ``to_dict`` was given; unknown or ill-typed fields are refused by name."""
    return _build(Experiment, data, "")


def bonus_name(bonus: Bonus) -> str:
    """Its registered name, or the expression of names that makes a mixture."""
    if not isinstance(bonus, Mixture):
        return _registered(bonus)
    weights = ["" if term.weight == 1 else f"{term.weight:g}*" for term in bonus.terms]
    terms = ["*".join(map(_registered, term.factors)) for term in bonus.terms]
    return " + ".join(weight + term for weight, term in zip(weights, terms, strict=True))


def _registered(bonus: Bonus) -> str:
    return next(name for name, kind in BONUSES.items() if type(bonus) is kind)


def find_bonus(name: str) -> type[Bonus]:
    if name not in BONUSES:
        raise unknown("bonus", name, BONUSES, "See `etd list`.")
    return BONUSES[name]


def override(experiment: Experiment, assignment: str) -> Experiment:
    """Apply one ``path=value``, such as ``bonus.learning_rate=1e-4``."""
    path, equals, text = assignment.partition("=")
    if not equals:
        raise UserError(f"{assignment!r} is not an assignment. Write --set path=value, as in bonus.learning_rate=1e-4.")
    return _assign(experiment, path.strip().split("."), text.strip(), path.strip())


def _assign(target: Any, path: list[str], text: str, whole: str) -> Any:
    head, *rest = path
    if isinstance(target, tuple):
        if not (head.isdigit() and int(head) < len(target) and rest):
            raise UserError(f"{whole!r}: number one of the {len(target)} parts and a field, as in terms.0.weight=2.")
        k = int(head)
        return (*target[:k], _assign(target[k], rest, text, whole), *target[k + 1 :])
    if not is_dataclass(target) or isinstance(target, type):
        raise UserError(f"{whole!r} goes too deep: {whole.rsplit('.', len(path))[0]!r} is a single value.")
    hints = get_type_hints(type(target))
    known = [f.name for f in fields(target)]
    if head not in known:
        where = f" of {whole.rsplit('.', 1)[0]!r}" if "." in whole else ""
        raise unknown("field", head, known, f"The fields{where} are {', '.join(known)}.")
    if rest:
        return replace(target, **{head: _assign(getattr(target, head), rest, text, whole)})
    if is_dataclass(getattr(target, head)):
        inner = ", ".join(f.name for f in fields(getattr(target, head)))
        raise UserError(f"{whole!r} is a group of fields ({inner}). Set one of them, as in {whole}.NAME=value.")
    return replace(target, **{head: _typed(hints[head], _parse(text), whole)})


def _parse(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def _build(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise UserError(f"{where or 'the experiment'} should be a group of fields, not {data!r}.")
    data = dict(data)
    if kind is Bonus:
        kind = find_bonus(data.pop("name", "?"))
    hints = get_type_hints(kind)
    known = {f.name for f in fields(kind)}
    for name in data:
        if name not in known:
            raise unknown("field", f"{where}{name}", known, f"{kind.__name__} has {', '.join(sorted(known))}.")
    values = {}
    for name, value in data.items():
        hint, path = hints[name], f"{where}{name}"
        values[name] = _value(hint, value, path)
    return kind(**values)


def _value(hint: Any, value: Any, path: str) -> Any:
    if is_dataclass(hint):
        return _build(hint, value, f"{path}.")
    if get_origin(hint) is tuple:
        return tuple(_value(get_args(hint)[0], part, f"{path}.{k}") for k, part in enumerate(value))
    return _typed(hint, value, path)


def _typed(hint: Any, value: Any, where: str) -> Any:
    """``value`` as ``hint`` says, or a sentence."""
    origin = get_origin(hint)
    if origin is Literal:
        if value not in get_args(hint):
            raise UserError(f"{where} cannot be {value!r}; it is one of {', '.join(map(repr, get_args(hint)))}.")
        return value
    if origin in (Union, UnionType):
        if value is None and type(None) in get_args(hint):
            return None
        return _typed(next(option for option in get_args(hint) if option is not type(None)), value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        raise UserError(f"{where} takes {_NAMES.get(hint, hint.__name__)}, not {value!r}.")
    return value


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}


def check(experiment: Experiment) -> Experiment:
    """Refuse values out of range or that do not fit together; make the environment once, so that a wrong id is said
    now."""
    _check_ranges(experiment, "")
    spec = experiment.env.spec
    reason = experiment.bonus.refusal(spec)
    if reason:
        raise UserError(f"{bonus_name(experiment.bonus)} cannot serve {spec.name}: {reason}")
    batch = experiment.steps_per_iteration
    for where, part in [("ppo", experiment.ppo), *_bonuses(experiment.bonus, "bonus")]:
        size = getattr(part, "minibatch", batch)
        if batch % size:
            raise UserError(
                f"{where}.minibatch = {size} does not divide num_envs x rollout_steps = {experiment.num_envs} x "
                f"{experiment.rollout_steps} = {batch}. Choose a divisor, such as {_divisor(batch, size)}."
            )
        width = getattr(part, "features", None)
        if isinstance(part, LearnedBonus) and "features" in part.needs and width != experiment.ppo.features:
            raise UserError(
                f"{where} reads the policy's embedding, so {where}.features = {width} must equal ppo.features = "
                f"{experiment.ppo.features}; or set {where}.source=own."
            )
    return experiment


def _check_ranges(value: Any, where: str) -> None:
    """Refuse what the limits declared with the fields forbid, in all parts; a field without limits is not judged."""
    for f in fields(value):
        inner, path = getattr(value, f.name), f"{where}{f.name}"
        limits = f.metadata.get("limits")
        if limits is not None and not limits.allow(inner):
            raise UserError(f"{path} = {inner} is out of range: it must be {limits}.")
        if is_dataclass(inner):
            _check_ranges(inner, f"{path}.")
        elif isinstance(inner, tuple):
            for k, part in enumerate(inner):
                if is_dataclass(part):
                    _check_ranges(part, f"{path}.{k}.")


def _bonuses(bonus: Bonus, where: str) -> list[tuple[str, Bonus]]:
    """The bonus, or the parts of a mixture, with their paths."""
    if not isinstance(bonus, Mixture):
        return [(where, bonus)]
    return [
        (f"{where}.terms.{i}.factors.{j}", factor)
        for i, term in enumerate(bonus.terms)
        for j, factor in enumerate(term.factors)
    ]


def _divisor(number: int, near: int) -> int:
    return min((d for d in range(1, number + 1) if number % d == 0), key=lambda d: abs(d - near))
