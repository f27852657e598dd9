"""Runs of earlier versions are read under today's names, and go on as they did then."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from etd.bonuses import DEIR, Count
from etd.lab.runs import session
from etd.lab.runs.store import Run
from etd.training import backend, presets
from etd.training.migrate import FORMAT, older_name, upgrade

OLD = Path(__file__).with_name("data") / "etd-0.1"
"""Written by etd 0.1 with JAX 0.10.2 and few optimisations, as here: ``deir + 0.5*count`` in four environments, a
checkpoint after two iterations (compressed since), metrics of four."""


@pytest.mark.slow
def test_a_run_of_etd_0_1_goes_on_as_it_did_then(tmp_path: Path) -> None:
    """To all digits on the machine that it was written on; other processors round otherwise."""
    run = Run.open(shutil.copytree(OLD, tmp_path / "run"))
    expected = run.metrics()
    run.rewind(2)
    resumed = session.resume(run.path, steps=256, quiet=True)
    assert resumed.metrics().keys() == expected.keys()
    for name in expected.keys() - {"wall"}:
        np.testing.assert_allclose(resumed.metrics()[name], expected[name], rtol=1e-5, atol=1e-5, err_msg=name)
    assert Run.open(run.path).record["format"] == FORMAT


def test_a_record_of_etd_0_1_is_read_under_todays_names() -> None:
    experiment = Run.open(OLD).require()
    assert (experiment.rollout_steps, experiment.steps, experiment.seed) == (16, 128, 3)
    assert (experiment.ppo.gae_lambda, experiment.ppo.value_coef, experiment.ppo.entropy_coef) == (0.95, 0.5, 0.01)
    whole, half = experiment.bonus.terms
    assert (whole.weight, whole.factors) == (1.0, (DEIR(minibatch=32, features=8, latent=8, epochs=1, queue=64),))
    assert (half.weight, half.factors) == (0.5, (Count(form="first"),))


def test_arrays_are_found_under_the_names_that_etd_0_1_gave_them() -> None:
    shapes = backend.shapes(presets.choose("MiniGrid-Empty-5x5-v0", "icm"))
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(shapes)]
    names = {older_name(jax.tree_util.keystr(path, simple=True, separator="/")) for path in paths}
    assert names >= {
        "minds/policy/params/gru/hidden/kernel",
        "minds/policy/opt/1/0/mu/gru/inputs/bias",
        "minds/bonus/learner/params/ahead/linear/kernel",
        "minds/bonus/learner/params/foretold/bias",
        "minds/ledger/seen",
    }


def test_what_is_not_of_an_earlier_format_is_left_alone() -> None:
    for record in ({"format": FORMAT, "experiment": {"rollout": 3}}, {"format": 1}, {"format": 1, "experiment": 3}):
        assert upgrade(record) == record
