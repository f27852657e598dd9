"""The presets hold the numbers of the paper's tables, cell by cell."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest

from etd.bonuses import BONUSES, ETD, RND, LearnedBonus, Mixture
from etd.core.errors import UserError
from etd.envs import families
from etd.training import presets
from etd.training.config import bonus_name, from_dict, override, to_dict
from etd.training.validate import check

CELLS = list(csv.DictReader((Path(__file__).parent / "paper.csv").open()))

WHERE = {
    "discount": ["ppo.discount"],
    "gae lambda": ["ppo.gae_lambda"],
    "PPO rollout steps": ["rollout_steps"],
    "PPO workers": ["num_envs"],
    "PPO clip range": ["ppo.clip"],
    "PPO training epochs": ["ppo.epochs"],
    "PPO learning rate": ["ppo.learning_rate"],
    "model training epochs": ["bonus.epochs"],
    "mini-batch size": ["ppo.minibatch", "bonus.minibatch"],
    "entropy loss coef": ["ppo.entropy_coef"],
    "model learning rate": ["bonus.learning_rate"],
    "normalization for layers": ["ppo.norm", "bonus.norm"],
    "extrinsic reward coef": ["mix.extrinsic"],
    "intrinsic reward coef": ["mix.intrinsic"],
    "observation queue size": ["bonus.queue"],
    "advantage normalization": ["ppo.advantage_norm"],
    "F": ["bonus.percentile"],
    "lambda": ["bonus.ridge"],
}
GREEK = {("noveld", "alpha"): "bonus.fraction", ("noveld", "beta"): "bonus.floor"}
GREEK |= {("ec", "alpha"): "bonus.scale", ("ec", "beta"): "bonus.offset"}
WORDS = {"Batch Norm": "batch", "Layer Norm": "layer", "yes": "running", "90-th  percentil": 90.0}
MISPRINT = ("obstructedmaze", "ec", "F")
"""The table says 1 there, which is no percentile and repeats the row above; we keep the 90th."""


@pytest.mark.parametrize("cell", CELLS, ids=lambda c: f"{c['group']}-{c['method']}-{c['hyperparameter']}")
def test_cell(cell: dict[str, str]) -> None:
    group, method, name, text = cell.values()
    experiment = presets.PRESETS[f"{group}-{method}"]
    value = WORDS[text] if text in WORDS else float(text)
    if (group, method, name) == MISPRINT:
        assert value == 1
        value = 90.0
    paths = [GREEK[method, name]] if (method, name) in GREEK else WHERE[name]
    if not isinstance(experiment.bonus, LearnedBonus):
        paths = [path for path in paths if not path.startswith("bonus")]
    assert paths
    for path in paths:
        assert reduce(getattr, path.split("."), experiment) == value, path


def test_what_a_table_leaves_out_is_etds() -> None:
    """A method's own table names few rows; no other field of PPO, of the mix or of the run differs from ETD's."""
    listed = {"learning_rate", "entropy_coef"}
    for name in BONUSES:
        for group in presets.GROUPS:
            if f"{group}-{name}" not in presets.PRESETS:
                continue
            ours, base = presets.PRESETS[f"{group}-{name}"], presets.PRESETS[f"{group}-etd"]
            same = replace(ours.ppo, **{field: getattr(base.ppo, field) for field in listed})
            assert same == base.ppo
            assert replace(ours, bonus=base.bonus, ppo=base.ppo, mix=base.mix, num_envs=base.num_envs) == base


@pytest.mark.parametrize("name", presets.PRESETS)
def test_a_presets_fields_fit_together(name: str) -> None:
    experiment = presets.PRESETS[name]
    if why := families.get(experiment.env.id).absence():
        pytest.skip(why)
    check(experiment)


def test_deir_as_its_author_advises() -> None:
    experiment = presets.find("obstructedmaze-deir-author")
    assert (experiment.num_envs, experiment.rollout_steps, experiment.ppo.minibatch) == (64, 256, 2048)
    assert (experiment.ppo.learning_rate, experiment.ppo.epochs, experiment.ppo.value_clip) == (1e-4, 3, 0.2)
    assert (experiment.ppo.features, experiment.ppo.head_norm, experiment.ppo.advantage_norm) == (256, "none", "none")
    assert (experiment.mix.intrinsic, experiment.mix.extrinsic, experiment.mix.momentum) == (1e-3, 10.0, 0.99)
    assert isinstance(experiment.bonus, LearnedBonus)
    assert experiment.bonus.learning_rate == 1e-4
    assert experiment.steps == 60_000_000


def test_keycorridor_differs_from_the_papers_by_the_rewards_weight() -> None:
    ours, papers = presets.find("keycorridor-etd"), presets.choose("MiniGrid-KeyCorridorS6R3-v0", "etd")
    assert (ours.mix.extrinsic, papers.mix.extrinsic) == (10.0, 1.0)
    assert replace(ours, mix=papers.mix, steps=papers.steps) == papers


def test_a_mixture_takes_its_parts_presets() -> None:
    experiment = presets.choose("MiniGrid-ObstructedMaze-1Q-v0", "etd + 0.5*rnd*count")
    assert isinstance(experiment.bonus, Mixture)
    etd, rnd, _ = experiment.bonus.parts
    assert isinstance(etd, ETD)
    assert isinstance(rnd, RND)
    assert (etd.epochs, etd.norm, rnd.epochs) == (4, "layer", 4)
    assert experiment.mix.extrinsic == 10.0
    assert experiment.env.id == "MiniGrid-ObstructedMaze-1Q-v0"
    assert bonus_name(experiment.bonus) == "etd + 0.5*rnd*count"
    assert from_dict(to_dict(experiment)) == experiment
    changed = override(experiment, "bonus.terms.1.weight=2")
    changed = override(changed, "bonus.terms.0.factors.0.epochs=1")
    assert bonus_name(changed.bonus) == "etd + 2*rnd*count"
    assert changed.bonus.parts[0].epochs == 1


@pytest.mark.parametrize(
    ("bonus", "words"),
    [
        ("edt + rnd", "etd"),
        ("etd +", "not a sum"),
        ("etd + 1", "without a bonus"),
        ("etd / rnd", "neither a bonus"),
        ("mixture", "sum or product"),
    ],
)
def test_a_wrong_expression_is_a_sentence(bonus: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        presets.choose("MiniGrid-DoorKey-8x8-v0", bonus)


def test_policy_embeddings_need_equal_widths() -> None:
    experiment = override(presets.find("minigrid-rnd"), "ppo.features=128")
    with pytest.raises(UserError, match=r"source=own"):
        check(experiment)
    check(override(experiment, "bonus.source=own"))
