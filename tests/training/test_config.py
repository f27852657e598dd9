from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from etd import BONUSES, ETD, PRESETS, Experiment, NoBonus, Task, UserError
from etd.agent.ppo import PPO
from etd.bonuses import AGAC, Mixture
from etd.bonuses.mixture import parse
from etd.core.limits import limited
from etd.nets.trunks import Trunk
from etd.training import presets
from etd.training.config import from_dict, override, to_dict
from etd.training.validate import check


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_json(name):
    assert from_dict(json.loads(json.dumps(to_dict(PRESETS[name])))) == PRESETS[name]


def test_an_override_is_typed():
    changed = override(override(Experiment(), "bonus.learning_rate=1e-4"), "ppo.norm=layer")
    assert changed.bonus.learning_rate == 1e-4
    assert changed.ppo.norm == "layer"
    assert override(Experiment(), "steps=2e6").steps == 2_000_000
    assert override(Experiment(), "mix.extrinsic=10").mix.extrinsic == 10.0
    assert override(Experiment(), "ppo.bootstrap_timeouts=true").ppo.bootstrap_timeouts is True


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("bonus.lerning_rate=1", "Did you mean 'learning_rate'"),
        ("stepz=1", "Did you mean 'steps'"),
        ("steps", "not an assignment"),
        ("steps=many", "takes a whole number"),
        ("steps=1.5", "takes a whole number"),
        ("ppo.epochs=true", "takes a whole number"),
        ("ppo=3", "There is no ppo '3'"),
        ("steps.more=3", "single value"),
        ("ppo.norm=weight", "one of 'batch', 'layer', 'none'"),
        ("ppo.bootstrap_timeouts=3", "true or false"),
    ],
)
def test_a_wrong_override_says_what_is_wrong(assignment, says):
    with pytest.raises(UserError, match=says):
        override(Experiment(), assignment)


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        (
            "ppo.minibatch=500",
            "does not divide num_envs x rollout_steps = 16 x 512 = 8192. Choose a divisor, such as 512",
        ),
        ("bonus.minibatch=1000", "such as 1024"),
        ("ppo.discount=1.5", r"ppo\.discount = 1\.5 is out of range: it must be at least 0 and at most 1"),
        ("bonus.learning_rate=0", "greater than 0"),
        ("bonus.embedding=7", "even"),
        ("mix.momentum=1", r"mix\.momentum = 1\.0 is out of range: it must be at least 0 and below 1"),
        ("env.noise=-0.1", "at least 0"),
        ("ppo.learning_rate=1e999", "a finite number"),
        ("seeds=0", "greater than 0"),
        ("env.id=MiniGrid-DoorKey-9x9-v0", "Did you mean 'MiniGrid-DoorKey-"),
        ("env.view_size=4", "odd"),
    ],
)
def test_values_that_cannot_work_are_refused(assignment, says):
    with pytest.raises(UserError, match=says):
        check(override(Experiment(), assignment))


def test_the_parts_of_a_mixture_are_checked():
    mixed = Experiment(bonus=parse("etd + 0.5*ngu*count", lambda name: BONUSES[name]()))
    check(mixed)
    with pytest.raises(UserError, match=r"bonus\.terms\.1\.factors\.0\.momentum = 1\.0 is out of range"):
        check(override(mixed, "bonus.terms.1.factors.0.momentum=1"))
    with pytest.raises(UserError, match=r"bonus\.terms = \(\) is out of range: it must be at least 1"):
        check(Experiment(bonus=Mixture()))


def test_a_redeclared_field_keeps_a_limit():
    with pytest.raises(UserError, match=r"bonus\.learning_rate = 0\.0"):
        check(Experiment(bonus=AGAC(learning_rate=0.0)))


def test_fields_of_ones_own_are_judged_by_their_own_limits():
    @dataclass(frozen=True)
    class Wide(Trunk):
        layers: int = limited(2, least=1)
        momentum: float = 5.0

    check(Experiment(ppo=PPO(trunk=Wide())))
    with pytest.raises(UserError, match=r"bonus\.trunk\.layers = 0 is out of range: it must be at least 1"):
        check(Experiment(bonus=ETD(trunk=Wide(layers=0))))
    with pytest.raises(UserError, match=r"bonus\.trunk\.layers = two is out of range"):
        check(Experiment(bonus=ETD(trunk=Wide(layers="two"))))
    check(Experiment(ppo=PPO(trunk=Wide(momentum=float("inf")))))  # ours are finite, theirs need not be
    with pytest.raises(UserError, match=r"ppo\.value_coef = inf is out of range: it must be a finite number"):
        check(Experiment(ppo=PPO(value_coef=float("inf"))))


def test_unknown_names_in_a_file_are_refused():
    with pytest.raises(UserError, match="Did you mean 'etd'"):
        from_dict({"bonus": {"class": "edt"}})
    with pytest.raises(UserError, match=r"no field 'ppo\.clipp'"):
        from_dict({"ppo": {"clipp": 0.1}})


def test_the_preset_fits_the_environment():
    assert presets.choose("MiniGrid-ObstructedMaze-Full-v0", "etd").mix.extrinsic == 10.0
    assert presets.choose("MiniGrid-DoorKey-16x16-v0", "none").bonus == NoBonus()
    with pytest.raises(UserError, match="Did you mean 'minigrid-etd'"):
        presets.find("minigrid-edt")


def test_the_papers_table_of_etd_in_minigrid():
    """The paper's table of ETD's hyperparameters, both columns."""
    for name, model_epochs, entropy, norm, extrinsic in [
        ("minigrid-etd", 8, 5e-4, "batch", 1.0),
        ("obstructedmaze-etd", 4, 1e-2, "layer", 10.0),
    ]:
        e = PRESETS[name]
        assert (e.ppo.discount, e.ppo.gae_lambda, e.rollout_steps, e.num_envs) == (0.99, 0.95, 512, 16)
        assert (e.ppo.clip, e.ppo.epochs, e.ppo.learning_rate, e.ppo.minibatch) == (0.2, 4, 3e-4, 512)
        assert (e.bonus.epochs, e.bonus.learning_rate, e.bonus.minibatch) == (model_epochs, 3e-4, 512)
        assert (e.ppo.entropy_coef, e.ppo.norm, e.bonus.norm) == (entropy, norm, norm)
        assert (e.mix.extrinsic, e.mix.intrinsic) == (extrinsic, 1e-2)
        assert (e.ppo.advantage_norm, e.ppo.features, e.ppo.latent) == ("running", 64, 128)
        assert isinstance(e.bonus, ETD)
        assert isinstance(e.env, Task)
