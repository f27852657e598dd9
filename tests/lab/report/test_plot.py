from __future__ import annotations

import csv
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from etd.core.errors import UserError
from etd.lab.report import plot
from etd.lab.runs.store import Run

NAN = float("nan")
RISING = np.array([[0.0, 0.2, 0.9], [0.1, 0.4, 0.7], [0.2, 0.6, 0.8]])


def lines(ax: Axes) -> dict[str, np.ndarray]:
    return {str(line.get_label()): np.asarray(line.get_ydata()) for line in ax.lines}


def test_by_seed_is_the_csv_rearranged(trained: Path) -> None:
    run = Run.open(trained)
    with run.metrics_file.open() as file:
        rows = list(csv.DictReader(file))
    steps, losses = [], []
    for row in rows:
        if row["seed"] == "4":
            steps.append(float(row["step"]))
            losses.append(float(row["model_loss"]))
    curve = plot.by_seed(run, "model_loss")
    assert curve.seeds == [3, 4]
    np.testing.assert_array_equal(curve.steps, steps)
    np.testing.assert_array_equal(curve.values[1], losses)


def test_half_a_row_is_left_out(logged) -> None:
    run = logged(RISING)
    with run.metrics_file.open("a") as file:
        file.write("4,0,40")
    assert plot.by_seed(run, "return").steps.tolist() == [1000, 2000, 3000]


def test_the_first_few_episodes_to_end_do_not_count(logged) -> None:
    """Of ten environments that time out together, three end before: those that are solved."""
    episodes = np.array([[3, 13, 21], [10, 10, 20], [0, 9, 19]])
    run = logged(RISING, episodes=episodes)
    np.testing.assert_array_equal(plot.by_seed(run, "return").values, np.where(episodes < 10, NAN, RISING))
    np.testing.assert_array_equal(plot.by_seed(run, "episodes").values, episodes)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 6.0], 3.0),
        ([0.0, 1.0, 2.0, 9.0], 1.5),
        ([9.0, 1.0, 2.0, 3.0, 4.0, -7.0, 5.0, 6.0], 3.5),
        ([NAN, 1.0, 3.0, NAN], 2.0),
        ([NAN, NAN], NAN),
    ],
)
def test_centre(values: list[float], expected: float) -> None:
    np.testing.assert_allclose(plot.centre(np.array(values)[:, None]), [expected])


def test_band_holds_the_centre_and_shrinks_with_agreement() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(5, 4))
    values[:, 2] = 7.0
    values[:, 3] = NAN
    low, high = plot.band(values)
    middle = plot.centre(values)
    assert (low[:2] < middle[:2]).all()
    assert (middle[:2] < high[:2]).all()
    assert low[2] == high[2] == 7.0
    assert np.isnan([low[3], high[3]]).all()
    np.testing.assert_array_equal(plot.band(values)[0], low)


@pytest.mark.parametrize("seeds", [1, 2, 3, 4, 5])
def test_band_of_few_seeds_is_exact(seeds: int) -> None:
    values = np.random.default_rng(5).random((seeds, 1))
    every = np.array(list(product(range(seeds), repeat=seeds)))
    found = [plot.centre(values[draw])[0] for draw in every]
    expected = np.percentile(found, [2.5, 97.5], method="inverted_cdf")
    np.testing.assert_allclose(np.ravel(plot.band(values)), expected)


def test_band_has_the_width_of_the_standard_error() -> None:
    values = np.random.default_rng(2).normal(size=(3000, 1))
    # The interquartile mean of normal values varies 1.2 times as much as their mean.
    low, high = plot.band(values)
    assert (high - low)[0] == pytest.approx(2 * 1.96 * np.sqrt(1.2 / 3000), rel=0.1)


def test_curves_draw_every_seed_and_their_mean(logged) -> None:
    figure = plot.draw_curves([logged(RISING)])
    (ax,) = figure.axes
    drawn = lines(ax)
    for seed in range(3):
        np.testing.assert_array_equal(drawn[f"_etd seed {seed}"], RISING[seed])
    np.testing.assert_allclose(drawn["etd"], RISING.mean(0))
    assert ax.get_title() == "MiniGrid-DoorKey-8x8-v0"
    assert ax.get_xlabel() == "environment steps"


def test_environments_get_panels_and_etd_keeps_its_colour(logged) -> None:
    runs = [
        logged(RISING, "plain", "none"),
        logged(RISING, "ours", "etd"),
        logged(RISING, "a", "etd", "MiniGrid-Empty-8x8-v0"),
        logged(RISING, "b", "etd", "MiniGrid-Empty-8x8-v0"),
    ]
    door, empty = plot.draw_curves(runs).axes
    colours = [{line.get_label(): line.get_color() for line in ax.lines} for ax in (door, empty)]
    assert colours[0]["etd"] == colours[1]["a"] == plot.COLOURS["etd"]
    assert len({colours[0]["no bonus"], colours[0]["etd"], colours[1]["b"]}) == 3


def test_runs_of_an_environment_differ_in_colour(logged) -> None:
    """Whichever comes first, the run named after its bonus has the bonus's colour."""
    bonuses = ["none", "count", "rnd", "icm", "ngu", "noveld", "ride", "agac", "ec", "e3b", "deir"]
    runs = [logged(RISING, "variant"), logged(RISING, "etd"), *(logged(RISING, name, name) for name in bonuses)]
    runs = [logged(RISING, "elsewhere", env="MiniGrid-Empty-8x8-v0"), *runs]
    _, door = plot.draw_curves(runs).axes
    colours = {line.get_label(): line.get_color() for line in door.lines if not str(line.get_label()).startswith("_")}
    assert len(set(colours.values())) == len(colours) == 13
    assert colours["etd"] == plot.COLOURS["etd"]
    assert colours["no bonus"] == plot.COLOURS["none"]


def test_however_many_runs_no_two_look_the_same(logged) -> None:
    """More than there are colours; and a method that is in two environments is told from all beside it in both."""
    runs = [logged(RISING, f"etd-{k:02}") for k in range(47)]
    runs += [logged(RISING, f"b/{name}", "rnd", "MiniGrid-Empty-8x8-v0") for name in ("etd-00", "etd-46", "c")]
    figure = plot.draw_curves(runs)
    for ax, count in zip(figure.axes, (47, 3), strict=True):
        shown = [line for line in ax.lines if not str(line.get_label()).startswith("_")]
        looks = {(line.get_color(), str(line._dash_pattern)) for line in shown}  # matplotlib tells dashes nowhere else
        assert len(looks) == len(shown) == count
    (legend,) = figure.legends
    figure.draw_without_rendering()
    box, whole = legend.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 < box.x1 <= whole.x1
    assert whole.y0 <= box.y0
    assert box.y1 <= min(ax.get_window_extent().y0 for ax in figure.axes)


def test_long_curves_are_thinned_but_keep_their_ends(logged) -> None:
    returns = np.linspace(0, 1, 1001)[None]
    (ax,) = plot.draw_curves([logged(returns)]).axes
    drawn = lines(ax)["etd"]
    assert len(drawn) == plot.POINTS
    assert (drawn[0], drawn[-1]) == (0, 1)


@pytest.mark.parametrize("returns", [np.full((2, 3), NAN), np.empty((2, 0))])
def test_nothing_finished_yet_is_said(logged, returns: np.ndarray, tmp_path: Path) -> None:
    run = logged(returns)
    (ax,) = plot.draw_curves([run]).axes
    assert [text.get_text() for text in ax.texts] == ["too few episodes yet"]
    assert plot.panel(run, tmp_path / "panel.png").exists()


def test_panel_shows_what_the_bonus_has_and_labels_its_axes(trained: Path, logged) -> None:
    def shown(run: Run) -> list[str]:
        axes = plot.draw_panel(run).axes
        assert {ax.get_xlabel() for ax in axes} == {"environment steps"}
        return [ax.get_ylabel().replace("\n", " ") for ax in axes]

    assert shown(Run.open(trained)) == [label for name, label in plot.LABELS.items() if name != "score"]
    assert shown(logged(RISING, bonus="none")) == [plot.LABELS["return"], plot.LABELS["success"]]


def test_files_are_what_their_suffix_says(trained: Path, tmp_path: Path) -> None:
    runs = [Run.open(trained)]
    with Image.open(plot.curves(runs, tmp_path / "new" / "curve.png")) as picture:
        picture.load()
        assert picture.format == "PNG"
        assert picture.size == (1024, 608)
    assert ElementTree.parse(plot.curves(runs, tmp_path / "curve.svg")).getroot().tag.endswith("svg")


def test_mistakes_get_sentences(trained: Path, tmp_path: Path) -> None:
    run = Run.open(trained)
    with pytest.raises(UserError, match=r"\.docx"):
        plot.curves([run], tmp_path / "curve.docx")
    with pytest.raises(UserError, match="no metric 'retrun'"):
        plot.curves([run], tmp_path / "curve.png", "retrun")
    with pytest.raises(UserError, match="at least one run"):
        plot.curves([], tmp_path / "curve.png")
