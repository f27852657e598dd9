"""The figures: what each is made of."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from etd.bonuses import ETD, LearnedBonus
from etd.envs import families
from etd.lab.paper import figures
from etd.nets.cells import GRU
from etd.training.validate import check


@pytest.mark.parametrize("figure", figures.FIGURES)
def test_every_cell_can_be_trained_and_has_a_name_of_its_own(figure):
    entries = figures.entries(figure)
    assert len({entry.name for entry in entries}) == len(entries)
    for entry in entries:
        assert entry.experiment.seeds == 5
        if why := families.get(entry.experiment.env.id).absence():
            pytest.skip(why)
        check(entry.experiment)
        small = check(figures.small(entry).experiment)
        assert small.steps <= 4096
        assert type(small.bonus) is type(entry.experiment.bonus)


def test_the_main_figure_is_eight_levels_by_nine_methods():
    entries = figures.entries("minigrid")
    assert len(entries) == 72
    steps = {entry.task: entry.experiment.steps for entry in entries}
    assert list(steps.values()) == [2_000_000, 3_000_000, 5_000_000, 5_000_000, *[10_000_000] * 2, *[20_000_000] * 2]
    assert {entry.method for entry in entries} == {"etd", "deir", "noveld", "e3b", "ec", "ngu", "rnd", "count", "none"}
    two_q = next(entry for entry in entries if entry.task == "ObstructedMaze-2Q")
    assert two_q.experiment.env.id == "MiniGrid-ObstructedMaze-2Q-Centre-v0"  # the start room of the paper's package


def test_ablations_change_one_field():
    base = figures.entries("minigrid")
    etd = next(entry for entry in base if entry.name == "ObstructedMaze-1Q/etd").experiment
    for figure, field in (("aggregate", "aggregate"), ("symmetry", "symmetric"), ("energy", "energy")):
        values = set()
        for entry in figures.entries(figure):
            assert isinstance(entry.experiment.bonus, ETD)
            values.add(getattr(entry.experiment.bonus, field))
            default = getattr(etd.bonus, field)
            same = replace(entry.experiment.bonus, **{field: default})
            assert replace(entry.experiment, bonus=same) == etd
        assert len(values) == len(figures.entries(figure))


def test_rivals_change_one_field_of_the_main_figures():
    base = {entry.name: entry.experiment for entry in figures.entries("minigrid")}
    changed = {}
    for entry in figures.entries("rivals"):
        bonus, _, how = entry.method.partition("-")
        ours, plain = entry.experiment, base[f"{entry.task}/{bonus}"]
        assert replace(ours, bonus=plain.bonus) == plain
        pairs = {f.name: (getattr(ours.bonus, f.name), getattr(plain.bonus, f.name)) for f in fields(plain.bonus)}
        others = {name: mine for name, (mine, theirs) in pairs.items() if mine != theirs}
        assert len(others) == bool(how), entry.name
        changed.setdefault(bonus, []).append(others)
    assert changed["e3b"] == changed["ngu"] == [{}, {"cell": GRU()}] * 2
    longest = base["DoorKey-16x16/ec"].env.spec.max_steps
    assert changed["ec"] == [{}, {"capacity": 50}, {"capacity": longest + 1}, {"threshold": 0.5}, {"threshold": 0.9}]


@pytest.mark.parametrize("figure", figures.FIGURES)
def test_the_quick_figure_has_the_same_panels(figure):
    tasks = {entry.task for entry in figures.entries(figure)}
    panels = {figures.small(entry).experiment.env for entry in figures.entries(figure)}
    assert len(panels) == len(tasks)


def test_noise_is_on_the_noisy_levels_alone():
    for entry in figures.entries("noise"):
        assert entry.experiment.env.noise == (0.1 if entry.task.endswith("(noisy)") else 0.0)
        assert isinstance(entry.experiment.bonus, LearnedBonus)
