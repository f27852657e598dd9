"""Distances learned in tiny mazes: the bonuses' own examples, losses and networks, and every refusal."""

from __future__ import annotations

import json
from dataclasses import replace
from html import escape
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import etd
from etd.bonuses import EC, ETD
from etd.bonuses.inverse import Inverse
from etd.core.errors import UserError
from etd.core.keys import named
from etd.envs.maze import MAZES, Maze
from etd.lab.mazes import distance as lab
from etd.lab.mazes import scores, studies

CORRIDOR = "########\n#......#\n########\n########"
SMALL = {"features": 8, "latent": 16}
QUICK = {"walks": 6, "length": 12, "seeds": 2, "steps": 3}


@pytest.fixture(scope="module")
def maze() -> Maze:
    return Maze(CORRIDOR, length=12)


@pytest.fixture(scope="module")
def learners():
    found = lab.rivals(12, 0.9)
    return {name: replace(bonus, **SMALL) for name, bonus in found.items()}


@pytest.fixture(scope="module")
def found(maze: Maze, learners) -> lab.Distances:
    return etd.distance(maze, discount=0.9, learners=learners, **QUICK)


def test_walks_are_episodes_of_the_maze(maze: Maze) -> None:
    seen = lab.walk(maze, 5, jax.random.key(0))
    assert seen.cells.shape == (13, 5)
    steps = np.abs(np.diff(np.asarray(seen.cells), axis=0))
    assert steps.max() == 1
    assert len(np.unique(np.asarray(seen.rollout.action))) == 4
    assert np.asarray(seen.rollout.done).sum() == 5
    assert np.asarray(seen.rollout.done)[-1].all()
    # A frame, with the standardising undone, is the maze with the agent in the walk's cell.
    frames = np.asarray(seen.frames * seen.scale + seen.mean).reshape(13, 5, *seen.mean.shape)
    expected = jax.vmap(jax.vmap(lambda cell: maze.observe(cell, jax.random.key(0))))(seen.cells)
    np.testing.assert_allclose(frames, expected, atol=1e-5)
    np.testing.assert_array_equal(seen.rollout.obs[1:], seen.rollout.next_obs)


def test_examples_are_the_bonus_own_and_name_frames(maze: Maze) -> None:
    """A future lies in the same walk, later; what the loss is given are its pictures."""
    seen = lab.walk(maze, 5, jax.random.key(0))
    pair = ETD(discount=0.9).examples(None, seen.rollout, (), jax.random.key(1))
    present, future = np.asarray(pair.obs).astype(int), np.asarray(pair.future).astype(int)
    assert pair.obs.dtype == jnp.uint32
    np.testing.assert_array_equal(present % 5, future % 5)
    assert (future > present).all()
    for bonus in (Inverse(), EC(near=2, far=6)):
        rows = bonus.examples(None, seen.rollout, (), jax.random.key(1))
        named_ = [leaf for leaf in jax.tree.leaves(rows) if leaf.dtype == jnp.uint32]
        assert len(named_) == 2


@pytest.mark.slow
def test_learning_lowers_the_bonus_own_loss(found: lab.Distances, maze: Maze, learners) -> None:
    """The programs are those that ``found`` has compiled; the rates make them ten times as fast."""
    seen = lab.walk(maze, 6, jax.random.key(0))
    for bonus in map(lab.settle, learners.values()):
        state = lab._begin(bonus, maze.spec, jax.random.key(1))

        @jax.jit
        def loss(state, bonus=bonus):
            rows = bonus.examples(state, seen.rollout, (), jax.random.key(2))
            batch = jax.tree.map(lambda leaf: lab._look(seen, leaf), rows)
            return bonus.loss(state.learner.net(), state.extra, batch, jax.random.key(3))[0]

        before = loss(state)
        for key in jax.random.split(jax.random.key(4), 15):
            state = lab._train(bonus, state, seen, jnp.full(QUICK["steps"], 10.0), key)
        assert loss(state) < before - 0.01


def test_arrays_and_exact_values(found: lab.Distances, maze: Maze) -> None:
    assert list(found.learned) == ["inverse", "ec", "etd"]
    for learned in found.learned.values():
        assert learned.shape == (2, 6, 6)
        assert np.isfinite(learned).all()
        assert not np.array_equal(learned[0], learned[1])
    steps = np.abs(np.arange(6)[:, None] - np.arange(6))
    np.testing.assert_array_equal(found.path, steps)
    assert (found.time >= steps).all()
    assert found.successor[0, 1] == pytest.approx(-np.log(0.225 / (1 - 0.675)))
    assert len(found.pieces) == 2


def test_a_seed_alone_is_that_seed_among_others(found: lab.Distances, maze: Maze, learners) -> None:
    options = {**QUICK, "seeds": 1, "seed": 1}
    alone = etd.distance(maze, discount=0.9, learners={"etd": learners["etd"]}, **options)
    np.testing.assert_allclose(alone.learned["etd"][0], found.learned["etd"][1], rtol=1e-5)


def test_untrained_and_trained_mrn_break_no_triangle(found: lab.Distances) -> None:
    for learned in found.learned["etd"]:
        assert scores.triangle(learned)[0] == 0


def test_symmetric_distances_are_symmetric(maze: Maze) -> None:
    learner = replace(lab.temporal(0.9, symmetric=True), **SMALL)
    d = lab.learn(maze, learner, 6, 3, 0)
    np.testing.assert_allclose(d, d.T, rtol=1e-5)
    options = {**QUICK, "seeds": 1}
    quasi = etd.distance(maze, discount=0.9, learners={"etd": replace(lab.temporal(0.9), **SMALL)}, **options)
    assert np.abs(quasi.learned["etd"][0] - quasi.learned["etd"][0].T).max() > 1e-4


def test_pieces_are_those_of_the_ways_walked(maze: Maze) -> None:
    cells = np.asarray(lab.walk(maze, 2, named(jax.random.key(3), "walks")).cells)
    ways = {frozenset(pair) for pair in zip(cells[:-1].ravel().tolist(), cells[1:].ravel().tolist(), strict=True)}
    crossed = sum(frozenset((a, a + 1)) in ways for a in range(5))
    assert lab.pieces(maze, 2, 3) == 6 - crossed


def test_the_grid_has_every_energy_and_loss() -> None:
    cells = lab.grid(0.95)
    assert len(cells) == 12
    assert {(bonus.energy, bonus.objective) for bonus in cells.values()} == {
        (energy, loss)
        for energy in ("cos", "l2", "mrn", "mrn+potential")
        for loss in ("forward", "backward", "symmetric")
    }
    assert all(bonus.discount == 0.95 for bonus in cells.values())


def test_ec_keeps_its_numbers_where_walks_have_50_steps() -> None:
    ec = lab.rivals(50, 0.99)["ec"]
    assert (ec.near, ec.far) == (EC().near, EC().far) == (5, 25)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("####\n#..#\n###\n", "line 1 has 4 characters, this line has 3"),
        ("####\n#.x#\n####", "Line 2, column 3: 'x'"),
        ("####\n####", "only walls"),
        ("#####\n#.#.#\n#####", "Line 2, column 4: this cell"),
        ("", "Line 1, column 1: the maze is empty"),
        (".....", "too narrow"),
    ],
)
def test_bad_drawings_are_refused_by_line_and_column(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "maze.txt"
    file.write_text(text)
    with pytest.raises(UserError, match=words) as refusal:
        etd.distance(file)
    assert "maze.txt" in str(refusal.value) or "narrow" in words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"discount": 1.0}, "above 0 and below 1"),
        ({"discount": 0.0}, "above 0 and below 1"),
        ({"walks": 0}, "0 walks"),
        ({"seeds": 0}, "0 seeds"),
        ({"steps": 0}, "0 steps"),
        ({"length": 0}, "cannot take 0 steps"),
        ({"start": (0, 0)}, "The start .* is a wall"),
        ({"maze": "Spirale"}, "Did you mean 'Spiral'"),
        ({"energy": "mnr"}, "Did you mean 'mrn'"),
        ({"loss": "sideways"}, "forward, backward, symmetric"),
    ],
)
def test_bad_options_are_refused_before_the_work(options: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        etd.distance(**options)


def test_a_start_is_where_all_walks_begin() -> None:
    maze = lab.find("OneWay", 5, start=(1, 2))
    cells = np.asarray(lab.walk(maze, 4, jax.random.key(0)).cells)
    assert {maze.cells[cell] for cell in cells[0]} == {(1, 2)}


# The command's files ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory, learners) -> tuple[Path, list[Path]]:
    """A study of the corridor with tiny learners."""
    out = tmp_path_factory.mktemp("distance")
    (out / "corridor.txt").write_text(CORRIDOR)
    options = studies.Options(maze=str(out / "corridor.txt"), walks=6, length=12, discount=0.9, seeds=2, steps=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(studies.STUDIES, "spiral", studies.Study("Spiral", lambda _: learners))
        patch.setitem(studies.STUDIES, "data", studies.Study("Spiral", lambda _: {"etd": learners["etd"]}))
        patch.setattr(studies, "DATA", (6, 8))
        files = studies.run("spiral", options, out, Console(quiet=True))
        files += studies.run("data", options, out, Console(quiet=True))
    return out, files


def test_files(written) -> None:
    out, files = written
    assert all(file.stat().st_size for file in files)
    names = {file.name for file in files}
    kinds = ("png", "json", "csv", "html")  # named after the maze: a study's own files are not overwritten
    assert names == {f"{stem}.{kind}" for stem in ("corridor", "data-corridor") for kind in kinds} | {
        "data-corridor-curve.png"
    }
    numbers = json.loads((out / "corridor.json").read_text())
    etd_ = numbers["results"][0]["scores"]["etd"]
    assert set(etd_) == set(scores.MEANING)
    assert len(etd_["path spearman"]["seeds"]) == 2
    assert numbers["settings"]["discount"] == 0.9
    assert [row["walks"] for row in json.loads((out / "data-corridor.json").read_text())["results"]] == [6, 8]


def test_every_score_is_explained_beside_it(written) -> None:
    out, _ = written
    page = (out / "corridor.html").read_text()
    assert all(scores.MEANING.values())
    for score, words in scores.MEANING.items():
        assert f'<th scope="row">{score}<small>{escape(words)}</small></th>' in page


@pytest.mark.parametrize(
    ("study", "maze", "stem"),
    [("spiral", None, "spiral"), ("noisy", "my maze", "noisy-mymaze"), ("spiral", "Hard", "Hard-maze")],
)
def test_files_of_a_maze_are_never_those_of_a_study(study: str, maze: str | None, stem: str) -> None:
    assert studies.stem(study, maze) == stem


def test_studies_name_the_paper_s_mazes() -> None:
    assert {study.maze for study in studies.STUDIES.values()} <= set(MAZES)
    with pytest.raises(UserError, match="Did you mean 'noisy'"):
        studies.run("noise", studies.Options(), Path("nowhere"))
    with pytest.raises(UserError, match=r"The red square .* is not a free cell"):
        studies.run("spiral", studies.Options(red=(0, 0)), Path("nowhere"))


# Learning --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_etd_finds_the_order_of_a_corridor() -> None:
    """Every cell's distances rise with the steps, and the rivals' do so less."""
    maze = Maze("############\n#..........#\n############\n############", length=30)
    found = etd.distance(maze, walks=200, length=30, seeds=2, steps=400)
    table = scores.table(found, 0)
    assert min(table["etd"]["path spearman"]) > 0.95
    for rival in ("inverse", "ec"):
        assert np.mean(table["etd"]["path spearman, all"]) > np.mean(table[rival]["path spearman, all"])


@pytest.mark.slow
def test_only_the_quasimetric_finds_the_one_way_maze() -> None:
    options = studies.Options(seeds=1, steps=400)
    found = etd.distance("OneWay", learners=studies.STUDIES["one-way"].learners(options), seeds=1, steps=400)
    table = scores.table(found, 0)
    assert table["etd"]["asymmetry pearson"][0] > 0.7
    assert table["etd, symmetric half"]["asymmetry pearson"][0] == 0
    assert table["etd, l2"]["asymmetry pearson"][0] == 0
