from __future__ import annotations

import jax
import numpy as np
import pytest
from oracle import BOX_SPEC, ENVS, KEY, SMALL, SPEC

from etd import UserError
from etd.bonuses import AGAC, RND, Count, Inverse, Mixture
from etd.bonuses.mixture import Term, parse
from etd.core.keys import named

SIZES = {**SMALL, "epochs": 1, "minibatch": 10}
NAMES = {"count": Count("root"), "rnd": RND(**SIZES), "inverse": Inverse(**SIZES), "agac": AGAC(**SIZES)}
MIXED = parse("rnd*count - 0.25*inverse + 2*count", NAMES.__getitem__)
PARTS = ["rnd", "count", "inverse", "count"]


def terms(text):
    """(weight, names) of the terms; bonuses are their own names."""
    return [(term.weight, "".join(term.factors)) for term in parse(text, str).terms]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + b", [(1, "a"), (1, "b")]),
        ("a*b", [(1, "ab")]),
        ("a + 0.5*b*c", [(1, "a"), (0.5, "bc")]),
        ("a*b + c*2", [(1, "ab"), (2, "c")]),
        ("a - b - c", [(1, "a"), (-1, "b"), (-1, "c")]),
        ("a - (b - 3*c)", [(1, "a"), (-1, "b"), (3, "c")]),
        ("a*(b + 2*c)", [(1, "ab"), (2, "ac")]),
        ("(a - b)*(c - 3)", [(1, "ac"), (-3, "a"), (-1, "bc"), (3, "b")]),
        ("-a*2", [(-2, "a")]),
        ("-(a - b)", [(-1, "a"), (1, "b")]),
        ("2*3*a", [(6, "a")]),
        ("(1 - 3)*a", [(1, "a"), (-3, "a")]),
        ("a*a", [(1, "aa")]),
        ("1*a", [(1, "a")]),
        (" 1e-2 * a+b ", [(0.01, "a"), (1, "b")]),
    ],
)
def test_expressions_are_multiplied_out(text, expected):
    assert terms(text) == expected


def test_a_single_name_is_that_bonus_itself():
    assert parse(" rnd ", NAMES.__getitem__) is NAMES["rnd"]
    assert parse("(rnd)", NAMES.__getitem__) is NAMES["rnd"]


@pytest.mark.parametrize(
    "text", ["a / b", "a**2", "a +", "", "(a", "a b", "a(b)", "a, b", "'a'*b", "1j*a", "a.b", "a < b"]
)
def test_other_syntax_is_refused_with_the_text(text):
    with pytest.raises(UserError) as error:
        parse(text, str)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize("text", ["2", "a + 1", "3 - a", "(a + 1)*(b + 1)", "-0.5"])
def test_a_constant_reward_is_refused(text):
    with pytest.raises(UserError, match="term without a bonus"):
        parse(text, str)


def test_unknown_names_are_the_callers_to_refuse():
    with pytest.raises(KeyError):
        parse("rnd + rdn", NAMES.__getitem__)


def test_needs_and_refuses_what_its_parts_do():
    assert MIXED.needs == {"features"}
    assert not MIXED.refusal(BOX_SPEC)
    mixed = parse("inverse + count*agac", NAMES.__getitem__)
    assert mixed.needs == {"logits"}
    assert mixed.refusal(BOX_SPEC) == NAMES["agac"].refusal(BOX_SPEC) != ""
    assert not mixed.refusal(SPEC)


def test_bonus_is_the_sum_of_products_and_parts_learn_as_if_alone(quick, rollouts):
    """Every part beside the mixture, with the state and the key that are its own."""

    def init(key):
        return MIXED.init(key, SPEC, ENVS), [
            NAMES[name].init(named(key, "part", k), SPEC, ENVS) for k, name in enumerate(PARTS)
        ]

    def one(bonus, state, rollout, key):
        state, scored = bonus.score(state, rollout, key)
        state, metrics = bonus.improve(state, rollout, scored.trace, key)
        return state, scored, metrics

    @quick
    def step(mixed, alone, rollout, key):
        parts = [
            one(NAMES[name], state, rollout, named(key, "part", k))
            for k, (name, state) in enumerate(zip(PARTS, alone, strict=True))
        ]
        return one(MIXED, mixed, rollout, key), parts

    mixed, alone = quick(init)(KEY)
    for rollout in rollouts:
        (mixed, scored, metrics), parts = step(mixed, alone, rollout, KEY)
        rnd, count, inverse, same_count = (np.asarray(part[1].bonus, np.float64) for part in parts)
        np.testing.assert_allclose(scored.bonus, rnd * count - 0.25 * inverse + 2 * count, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(count, same_count)
        alone = [part[0] for part in parts]
        for k, state in enumerate(alone):
            together = (mixed.learner[k], mixed.memory[k], mixed.extra[k])
            close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)  # noqa: E731
            jax.tree.map(close, together, tuple(state))
        for name, value in (("part0_rnd_loss", parts[0][2]["loss"]), ("part2_inverse_loss", parts[2][2]["loss"])):
            np.testing.assert_allclose(metrics[name], value, rtol=1e-5)
        np.testing.assert_allclose(scored.metrics["part2_inverse_mean"], inverse.mean(), rtol=1e-5)


def test_weights_and_parts_stay_in_order():
    a, b, c = NAMES["rnd"], NAMES["count"], NAMES["inverse"]
    assert parse("rnd - 2*count*inverse", NAMES.__getitem__) == Mixture((Term(1.0, (a,)), Term(-2.0, (b, c))))
