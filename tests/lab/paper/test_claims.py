"""The paper's claims, judged on runs whose numbers are known."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from etd.lab.paper import claims, figures


@pytest.fixture
def runs(logged):
    """Writes finished runs, five seeds each, from (task, method) and the return at each of ten points, the last after
    the figure's last step or a share of it."""

    number = count()

    def build(table, share=1.0):
        made = {}
        for (task, method), curve in table.items():
            returns = np.tile(np.asarray(curve, float), (5, 1)) + np.linspace(-0.01, 0.01, 5)[:, None]
            env, steps = figures.TASKS[task.removesuffix(" (noisy)")]
            step = np.tile(np.linspace(0.1, 1, 10) * share * (steps + 8192), (5, 1))  # to the end of an iteration
            made[task, method] = logged(returns, f"run-{next(number)}", env=env, step=step.astype(int))
        return made

    return build


LATE, EARLY, NEVER = [0] * 6 + [0.95] * 4, [0] * 2 + [0.95] * 8, [0.0] * 10
FULL = "ObstructedMaze-Full"


def verdict(figure, made, start):
    return next(judged for judged in claims.judge(figure, made) if judged.words.startswith(start))


def test_twice_the_sample_efficiency(runs):
    made = runs({(FULL, "etd"): EARLY, (FULL, "noveld"): LATE})
    judged = verdict("minigrid", made, "ETD is about twice")
    assert judged.verdict == "holds"
    assert "6.0 M steps against 14.0 M steps" in judged.ours
    assert verdict("minigrid", {(t, {"etd": "noveld", "noveld": "etd"}[m]): r for (t, m), r in made.items()},
                   "ETD is about twice").verdict == "fails"  # fmt: skip
    never = runs({(FULL, "etd"): NEVER, (FULL, "noveld"): NEVER})
    assert verdict("minigrid", never, "ETD is about twice").verdict == "fails"
    assert "more than the 20.0 M steps run" in verdict("minigrid", never, "ETD is about twice").ours


@pytest.mark.parametrize(("ours", "words"), [(0.5, "holds"), (0.46, "holds"), (0.44, "fails")])
def test_to_match_is_to_be_at_most_a_little_behind(runs, ours, words):
    mazes = [f"Maze3D-S{size}" for size in (3, 4, 5)]
    rivals = {(maze, rival): [0.5] * 10 for maze in mazes for rival in ("deir", "noveld", "none")}
    made = runs(rivals | {(maze, "etd"): [ours] * 10 for maze in mazes})
    assert verdict("maze3d", made, "ETD is ahead").verdict == words


@pytest.mark.parametrize(("ours", "words"), [(-200, "holds so far"), (-209, "holds so far"), (-211, "fails")])
def test_a_large_return_is_matched_within_a_share_of_it(runs, ours, words):
    task = "HalfCheetahVelSparse"
    judged = verdict("halfcheetah", runs({(task, "none"): [ours] * 10, (task, "etd"): [-200] * 10}), "A bonus")
    assert judged.verdict == words
    assert judged.ours.endswith(f"{task} {ours} against -200 (etd); only 1 of 3 comparisons finished")


def test_a_significant_lead_is_more_than_chance(runs):
    """Five seeds that lie 0.005 apart, against five: 24 of 25 pairs won have p = 0.016, 19 of 25 p = 0.22."""
    acrobot, hopper, cartpole = claims._CONTROL
    made = runs({(acrobot, "none"): [0.5] * 10, (acrobot, "etd"): [0.516] * 10})
    judged = verdict("dmc", made, "ETD is significantly")
    assert judged.verdict == "holds so far"
    ours = f"significantly ahead on 1 of 1: {acrobot} 0.52 against 0.50 (p = 0.016); only 1 of 3 tasks finished"
    assert judged.ours == ours
    near = made | runs({(hopper, "none"): [0.5] * 10, (hopper, "etd"): [0.506] * 10})
    assert verdict("dmc", near, "ETD is significantly").verdict == "fails"
    assert "(p = 0.22)" in verdict("dmc", near, "ETD is significantly").ours
    behind = made | runs({(hopper, "none"): [0.6] * 10, (hopper, "etd"): [0.5] * 10})
    assert verdict("dmc", behind, "ETD is significantly").verdict == "fails"
    whole = made | runs(
        {(task, name): [value] * 10 for task in (hopper, cartpole) for name, value in (("none", 100), ("etd", 200))}
    )
    judged = verdict("dmc", whole, "ETD is significantly")
    assert judged.verdict == "holds"
    assert judged.ours.startswith("significantly ahead on 3 of 3")
    assert judged.ours.endswith(f"{cartpole} 200 against 100 (p = 0.0079)")


def test_to_do_well_on_several_tasks_is_to_do_well_on_the_worst(runs):
    made = runs({("Reach", "none"): EARLY, ("Hammer", "none"): LATE})
    judged = verdict("metaworld", made, "PPO performs well")
    ours = "final return at least 0.95 (Reach); only 2 of 3 tasks finished"
    assert (judged.verdict, judged.ours) == ("holds so far", ours)
    made |= runs({("Button-press", "none"): [0.0] * 5 + [0.8] * 5})
    judged = verdict("metaworld", made, "PPO performs well")
    assert (judged.verdict, judged.ours) == ("fails", "final return at least 0.80 (Button-press)")


def test_too_few_seeds_cannot_show_a_significant_lead(runs, logged):
    task, steps = claims._CONTROL[0], np.linspace(1e5, 1.1e6, 10, dtype=int)
    env = figures.TASKS[task][0]

    def few(name, returns):
        return logged(np.tile(np.asarray(returns)[:, None], 10), name, env=env, step=np.tile(steps, (len(returns), 1)))

    judged = verdict("dmc", {(task, "etd"): few("a", [3, 4, 5]), (task, "none"): few("b", [0, 1, 2])}, "ETD is")
    assert (judged.verdict, judged.ours) == ("not run", f"{task}/etd with more seeds is missing")
    alone = verdict("dmc", {(task, "etd"): few("c", [3, 4, 5])}, "ETD is")
    assert alone.ours == f"{task}/none is missing"
    silent = {(task, "etd"): few("d", [5, 6, 7, 8, np.nan]), (task, "none"): few("e", [0, 0, 1, 2, 3])}
    assert verdict("dmc", silent, "ETD is").ours.startswith(f"significantly ahead on 1 of 1: {task} 6.50 against 1.00")
    ties = {(task, "etd"): few("f", [0, 4, 5, 6, 7]), (task, "none"): few("g", [0] * 5)}
    assert "(p = 0.048)" in verdict("dmc", ties, "ETD is").ours  # by all 252 permutations; 0.056 if ties are ignored


@pytest.mark.parametrize(("zeros", "holds"), [(2, "holds"), (5, "holds"), (7, "fails"), (9, "fails")])
def test_a_rival_that_never_arrives_is_known_to_need_more_than_was_run(runs, zeros, holds):
    made = runs({(FULL, "etd"): [0] * zeros + [0.95] * (10 - zeros), (FULL, "noveld"): [0] * 9 + [0.79]})
    judged = verdict("minigrid", made, "ETD is about twice")
    assert judged.verdict == holds
    assert judged.ours.endswith("against more than the 20.0 M steps run")


def test_short_and_quick_runs_are_not_judged(runs, logged):
    task = "DoorKey-16x16"
    assert verdict("bonuses", runs({(task, "etd"): LATE}), "ETD solves").verdict == "holds"
    assert verdict("bonuses", runs({(task, "etd"): LATE}, share=0.9), "ETD solves").verdict == "not run"
    steps = np.linspace(1e6, 1e7, 10, dtype=int)[None]
    small = logged(np.full((1, 10), 0.95), env=f"MiniGrid-{figures.SMALL[task]}", step=steps)
    judged = verdict("bonuses", {(task, "etd"): small}, "ETD solves")
    assert (judged.verdict, judged.ours) == ("not run", f"{task}/etd is missing")


def test_a_run_without_a_finished_episode_is_missing(runs):
    task, silent = "DoorKey-16x16", [np.nan] * 10
    judged = verdict("bonuses", runs({(task, "none"): silent}), "PPO does not learn")
    assert (judged.verdict, judged.ours) == ("not run", f"{task}/none is missing")
    made = runs({(FULL, "none"): NEVER, (task, "none"): silent})
    judged = verdict("minigrid", made, "PPO does not learn")
    assert judged.verdict == "holds so far"
    assert judged.ours.endswith("; only 1 of 8 tasks finished")
    late = verdict("bonuses", runs({(task, "etd"): [np.nan] * 2 + [0.95] * 7 + [np.nan]}), "ETD solves")
    assert (late.verdict, late.ours) == ("holds", "final return 0.95")


def test_near_optimal_by_the_interquartile_mean(runs):
    assert verdict("minigrid", runs({(FULL, "etd"): LATE}), "ETD is near-optimal").verdict == "holds"
    poor = verdict("minigrid", runs({(FULL, "etd"): [0.5] * 10}), "ETD is near-optimal")
    assert (poor.verdict, poor.ours) == ("fails", "final return 0.50")


def test_being_ahead_counts_early_learning(runs):
    table = {("DoorKey-16x16", method): LATE for method in (*claims._RIVALS, "etd")}
    table["DoorKey-16x16", "etd"] = EARLY
    made = runs(table)
    judged = verdict("bonuses", made, "ETD is ahead")
    assert judged.verdict == "holds"
    made |= runs({("DoorKey-16x16", "count"): [0.95] * 10})
    judged = verdict("bonuses", made, "ETD is ahead")
    assert judged.verdict == "fails"
    assert "(count)" in judged.ours
    none_learns = runs({("DoorKey-16x16", method): NEVER for method in (*claims._RIVALS, "etd")})
    assert verdict("bonuses", none_learns, "ETD is ahead").verdict == "fails"


def test_differences_that_are_small(runs):
    task = "ObstructedMaze-1Q"
    alike = runs({(task, "asymmetric"): EARLY, (task, "symmetric"): EARLY})
    assert verdict("symmetry", alike, "The symmetric").verdict == "holds"
    apart = runs({(task, "asymmetric"): EARLY, (task, "symmetric"): LATE})
    assert verdict("symmetry", apart, "The symmetric").verdict == "fails"
    neither = verdict("symmetry", runs({(task, "asymmetric"): NEVER, (task, "symmetric"): NEVER}), "The symmetric")
    assert neither.verdict == "fails"
    assert neither.ours.endswith("; none of them learns")


def test_one_run_can_refute_but_only_all_can_confirm(runs):
    made = runs({(FULL, "none"): NEVER, ("DoorKey-16x16", "none"): NEVER})
    judged = verdict("minigrid", made, "PPO does not learn")
    assert judged.verdict == "holds so far"
    assert judged.ours.endswith("; only 2 of 8 tasks finished")
    made |= runs({("MultiRoom-N6", "none"): LATE})
    assert verdict("minigrid", made, "PPO does not learn").verdict == "fails"
    made |= runs({(FULL, "etd"): EARLY, (FULL, "rnd"): NEVER})
    judged = verdict("minigrid", made, "ETD is ahead")
    assert judged.verdict == "holds so far"
    assert judged.ours.endswith("; only 2 of 64 comparisons finished")
    made |= runs({("MultiRoom-N6", "etd"): NEVER})
    assert verdict("minigrid", made, "ETD is ahead").verdict == "fails"


def test_what_is_missing_is_not_judged():
    for figure in claims.CLAIMS:
        judged = claims.judge(figure, {})
        assert judged
        assert {one.verdict for one in judged} == {"not run"}
        names = {entry.name for entry in figures.entries(figure)}
        assert all(one.ours.removesuffix(" is missing") in names for one in judged)
    assert claims.judge("full-v1", {}) == []


def test_a_lead_that_not_all_seeds_share_is_told(runs):
    """The seeds lie 0.005 apart: of 25 pairs the one that leads by a little more wins 19."""
    task = "ObstructedMaze-1Q"
    near = {(task, name): [0.5] * 10 for name in ("mrn", "l2", "cos")}
    judged = verdict("energy", runs({**near, (task, "mrn+potential"): [0.506] * 10}), "MRN")
    assert judged.verdict == "holds"
    assert judged.ours.endswith("0.51 against 0.50 (mrn, behind in 76% of seed pairs)")
    judged = verdict("energy", runs({**near, (task, "mrn+potential"): [0.6] * 10}), "MRN")
    assert judged.ours.endswith("0.60 against 0.50 (mrn)")
    judged = verdict("energy", runs({**near, (task, "mrn+potential"): [0.502] * 10}), "MRN")
    assert judged.ours.endswith("0.50 against 0.50 (mrn)")
