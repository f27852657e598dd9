"""The paper's claims about its figures, each with a test on our numbers.

A claim is judged by interquartile means over seeds: of the final return, or of the return averaged over training, which
rewards learning early; a significant lead, by a Mann-Whitney test of the seeds' averages. If some of a claim's runs are
missing or unfinished, it fails as soon as one of the others contradicts it, and until then "holds so far"; without any
run it is "not run". Only runs in the figure's own environments and of the figure's length are judged; one with too few
finished episodes counts as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import comb
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy import stats

from etd.lab.paper import figures
from etd.lab.paper.figures import EIGHT, NOISY
from etd.lab.report import statistics
from etd.lab.report.curves import Curves, Floats, by_seed
from etd.lab.report.write import Judged
from etd.lab.runs.store import Run

Runs: TypeAlias = Mapping[tuple[str, str], Run]
"""Finished runs by (task, method)."""


class Judgement(NamedTuple):
    """Whether the claim holds by these numbers, and whether all runs it is about were there."""

    holds: bool
    ours: str
    whole: bool = True


Judge: TypeAlias = Callable[[Runs], Judgement]
"""Raises a KeyError that names a missing run if the claim cannot be judged without it."""

NEAR_OPTIMAL = 0.85
NOT_LEARNED = 0.1
AHEAD = 0.005
"""The smallest lead that counts: two methods that learn nothing are not ahead of each other."""
MATCHES = 0.05
"""The largest gap at which one method matches another. This and AHEAD are shares of returns beyond 1."""
SIGNIFICANT = 0.05
"""The largest p of a significant difference."""


@dataclass(frozen=True)
class Claim:
    """A sentence about a figure, and how to judge it."""

    words: str
    judge: Judge


def judge(figure: str, runs: Runs) -> list[Judged]:
    """The figure's claims, judged by what has run."""
    verdicts = []
    claims = CLAIMS.get(figure, [])
    runs = _whole(figure, runs) if claims else {}
    for claim in claims:
        try:
            holds, ours, whole = claim.judge(runs)
        except KeyError as error:
            verdicts.append(Judged(claim.words, f"{'/'.join(error.args[0])} is missing", "not run"))
        else:
            verdicts.append(Judged(claim.words, ours, ("holds" if whole else "holds so far") if holds else "fails"))
    return verdicts


def _whole(figure: str, runs: Runs) -> Runs:
    """The runs that the claims are about: no --quick or shortened ones, and none without a return."""
    chosen = {}
    for entry in figures.entries(figure):
        run, wanted = runs.get((entry.task, entry.method)), entry.experiment
        if run is not None and run.experiment.env.id == wanted.env.id:
            curve = by_seed(run, "return")
            far = curve.steps.max(initial=0) >= wanted.iterations * wanted.steps_per_iteration
            if far and np.isfinite(curve.values).any():
                chosen[entry.task, entry.method] = run
    return chosen


def final(run: Run) -> float:
    """Interquartile mean over seeds of the final return."""
    return _middle(run, statistics.final)


def average(run: Run) -> float:
    """Interquartile mean over seeds of the return averaged over training."""
    return _middle(run, statistics.average)


def _middle(run: Run, measure: Callable[[Curves], Floats]) -> float:
    return statistics.middle(measure(by_seed(run, "return")))


def _doubt(run: Run, other: Run) -> str:
    """The share of seed pairs in which the other's average return is lower, in words; empty if 0 or 1."""
    share = statistics.better(*(statistics.average(by_seed(each, "return"))[:, None] for each in (run, other)))
    return f", behind in {share:.0%} of seed pairs" if 0 < share < 1 else ""


def _below(method: str, tasks: tuple[str, ...], limit: float) -> Judge:
    """The method's final return stays below ``limit`` on every task."""

    def judge(runs: Runs) -> Judgement:
        task, value, missing = _extreme(max, runs, method, tasks)
        return Judgement(value < limit, f"final return at most {value:.2f} ({task}){missing}", not missing)

    return judge


def _above(method: str, tasks: tuple[str, ...], limit: float) -> Judge:
    """The method's final return is at least ``limit`` on every task."""

    def judge(runs: Runs) -> Judgement:
        task, value, missing = _extreme(min, runs, method, tasks)
        words = f"final return {value:.2f}" if len(tasks) == 1 else f"final return at least {value:.2f} ({task})"
        return Judgement(value >= limit, words + missing, not missing)

    return judge


def _extreme(choose: Callable[..., str], runs: Runs, method: str, tasks: tuple[str, ...]) -> tuple[str, float, str]:
    """The task with the largest or smallest final return, that return, and in words how many tasks are missing."""
    finals = {task: final(runs[task, method]) for task in tasks if (task, method) in runs}
    if not finals:
        raise KeyError((tasks[0], method))
    task = choose(finals, key=lambda task: finals[task])
    return task, finals[task], _of(len(finals), len(tasks), "tasks")


def _best(method: str, others: tuple[str, ...], tasks: tuple[str, ...], lead: float = AHEAD) -> Judge:
    """The method's average return is the highest on every task, by ``lead``; a negative one lets it match the best."""

    def judge(runs: Runs) -> Judgement:
        won, said, pairs = 0, [], 0
        for task in tasks:
            rivals = {other: average(runs[task, other]) for other in others if (task, other) in runs}
            if rivals and (task, method) in runs:
                ours, pairs = average(runs[task, method]), pairs + len(rivals)
                rival = max(rivals, key=lambda other: rivals[other])
                scale = max(1.0, abs(ours), abs(rivals[rival]))
                won += ours >= rivals[rival] + lead * scale
                apart = abs(ours - rivals[rival]) >= AHEAD * scale
                who = rival + (_doubt(runs[task, method], runs[task, rival]) if apart else "")
                said.append(f"{task} {_number(ours)} against {_number(rivals[rival])} ({who})")
        if not said:
            missing = [(task, name) for task in tasks for name in (method, *others) if (task, name) not in runs]
            raise KeyError(missing[0])
        every = len(tasks) * len(others)
        place = "first" if lead > 0 else "first or level"
        words = f"{place} on {won} of {len(said)}: " + "; ".join(said) + _of(pairs, every, "comparisons")
        return Judgement(won == len(said), words, pairs == every)

    return judge


def _significant(method: str, other: str, tasks: tuple[str, ...]) -> Judge:
    """The method is significantly ahead of the other on every task, by a two-sided Mann-Whitney test of the seeds'
    average returns. A task with too few seeds to tell counts as missing."""

    def judge(runs: Runs) -> Judgement:
        won, said, missing = 0, [], []
        for task in tasks:
            if absent := [(task, name) for name in (method, other) if (task, name) not in runs]:
                missing += absent
            else:
                averages = [statistics.average(by_seed(runs[task, name], "return")) for name in (method, other)]
                ours, theirs = (values[np.isfinite(values)] for values in averages)
                if 2 / comb(len(ours) + len(theirs), len(ours)) > SIGNIFICANT:  # the least p there can be
                    missing.append((task, f"{method} with more seeds"))
                    continue
                p = float(stats.mannwhitneyu(ours, theirs, method=stats.PermutationMethod(n_resamples=np.inf)).pvalue)
                ahead = statistics.better(ours[:, None], theirs[:, None])
                won += p <= SIGNIFICANT and ahead > 0.5
                means = " against ".join(_number(statistics.middle(values)) for values in (ours, theirs))
                said.append(f"{task} {means} (p = {p:.2g})")
        if not said:
            raise KeyError(missing[0])
        words = f"significantly ahead on {won} of {len(said)}: " + "; ".join(said) + _of(len(said), len(tasks), "tasks")
        return Judgement(won == len(said), words, len(said) == len(tasks))

    return judge


def _number(value: float) -> str:
    """Returns of tens and hundreds without decimals."""
    return f"{value:.{0 if abs(value) >= 10 else 2}f}"


def _of(count: int, every: int, what: str) -> str:
    return "" if count == every else f"; only {count} of {every} {what} finished"


def _close(task: str, methods: tuple[str, ...], within: float) -> Judge:
    """The methods' average returns are within ``within`` of each other, and at least one of them learns."""

    def judge(runs: Runs) -> Judgement:
        values = {method: average(runs[task, method]) for method in methods}
        said = "average return: " + ", ".join(f"{method} {value:.2f}" for method, value in values.items())
        if max(final(runs[task, method]) for method in methods) <= NOT_LEARNED:
            return Judgement(False, f"{said}; none of them learns")
        return Judgement(max(values.values()) - min(values.values()) <= within, said)

    return judge


def _twice_as_fast(task: str, method: str, other: str, level: float) -> Judge:
    """Median steps to a return of ``level``: the other needs at least 1.5 times as many. One that does not reach it is
    only known to need more than were run."""

    def judge(runs: Runs) -> Judgement:
        (ours, end), (theirs, their_end) = (_steps_to(runs[task, name], level) for name in (method, other))
        words = f"return {level} after {_say(ours, end)} against {_say(theirs, their_end)}"
        return Judgement(bool(np.isfinite(ours) and min(theirs, their_end) >= 1.5 * ours), words)

    return judge


def _steps_to(run: Run, level: float) -> tuple[float, float]:
    """Median over seeds, infinite if half of them do not reach ``level``; and the last step."""
    curve = by_seed(run, "return")
    return float(np.median(statistics.first(curve, level))), float(curve.steps[-1])


def _say(steps: float, last: float) -> str:
    return f"{steps / 1e6:.1f} M steps" if np.isfinite(steps) else f"more than the {last / 1e6:.1f} M steps run"


_CONTROL = ("Acrobot-swingup", "Hopper-hop", "Cartpole-swingup")
_RIVALS = ("deir", "noveld", "e3b", "ec", "ngu", "rnd", "count", "none")

CLAIMS: dict[str, list[Claim]] = {
    "bonuses": [
        Claim("ETD solves DoorKey-16x16", _above("etd", ("DoorKey-16x16",), NEAR_OPTIMAL)),
        Claim("PPO does not learn DoorKey-16x16 without a bonus", _below("none", ("DoorKey-16x16",), NOT_LEARNED)),
        Claim("RND has almost no effect on DoorKey-16x16", _below("rnd", ("DoorKey-16x16",), NOT_LEARNED)),
        Claim("ETD is ahead of all others on DoorKey-16x16", _best("etd", _RIVALS, ("DoorKey-16x16",))),
    ],
    "minigrid": [
        Claim(
            f"ETD is near-optimal (return {NEAR_OPTIMAL}) on ObstructedMaze-Full within 20 M steps",
            _above("etd", ("ObstructedMaze-Full",), NEAR_OPTIMAL),
        ),
        Claim(
            "ETD is about twice as sample-efficient as NovelD on ObstructedMaze-Full",
            _twice_as_fast("ObstructedMaze-Full", "etd", "noveld", 0.8),
        ),
        Claim("ETD is ahead of all others on all eight levels", _best("etd", _RIVALS, EIGHT)),
        Claim(f"PPO does not learn (return {NOT_LEARNED}) without a bonus", _below("none", EIGHT, NOT_LEARNED)),
        Claim("RND has almost no effect", _below("rnd", EIGHT, NOT_LEARNED)),
        Claim("NovelD is ahead of Count", _best("noveld", ("count",), EIGHT)),
        # "NGU performs poorly", "DEIR, E3B, and EC all perform relatively well"
        Claim("DEIR is ahead of NGU", _best("deir", ("ngu",), EIGHT)),
        Claim("E3B is ahead of NGU", _best("e3b", ("ngu",), EIGHT)),
        Claim("EC is ahead of NGU", _best("ec", ("ngu",), EIGHT)),
    ],
    "noise": [
        Claim("NovelD fails under noise", _below("noveld", NOISY, NOT_LEARNED)),
        Claim("ETD is ahead of NovelD, DEIR and E3B under noise", _best("etd", ("noveld", "deir", "e3b"), NOISY)),
    ],
    "representation": [
        Claim(
            "On DoorKey-16x16 the embeddings make little difference",
            _close("DoorKey-16x16", ("etd", "inverse", "discriminator"), 0.1),
        ),
        Claim(
            "On ObstructedMaze-1Q temporal distance is ahead",
            _best("etd", ("inverse", "discriminator"), ("ObstructedMaze-1Q",)),
        ),
    ],
    "aggregate": [
        Claim("The minimum is ahead", _best("min", ("quantile10", "knn10", "knn10avg"), ("ObstructedMaze-1Q",)))
    ],
    "symmetry": [
        Claim("The symmetric distance does as well", _close("ObstructedMaze-1Q", ("asymmetric", "symmetric"), 0.1))
    ],
    "energy": [
        Claim("MRN with the potential is ahead", _best("mrn+potential", ("mrn", "l2", "cos"), ("ObstructedMaze-1Q",)))
    ],
    "loss": [
        Claim(
            "The direction of the loss makes little difference",
            _close("ObstructedMaze-1Q", ("symmetric", "forward", "backward"), 0.1),
        )
    ],
    "maze3d": [
        Claim(
            "ETD is ahead of DEIR, NovelD and PPO in first-person mazes, or matches them",
            _best("etd", ("deir", "noveld", "none"), ("Maze3D-S3", "Maze3D-S4", "Maze3D-S5"), -MATCHES),
        )
    ],
    "dmc": [Claim("ETD is significantly ahead of PPO on DeepMind Control", _significant("etd", "none", _CONTROL))],
    "metaworld": [
        Claim(
            f"PPO performs well (return {NEAR_OPTIMAL}) on Meta-World without a bonus",
            _above("none", ("Reach", "Hammer", "Button-press"), NEAR_OPTIMAL),
        )
    ],
    "halfcheetah": [
        Claim(
            "A bonus does not help on HalfCheetahVelSparse",
            _best("none", ("etd", "noveld", "e3b"), ("HalfCheetahVelSparse",), -MATCHES),
        )
    ],
}
"""By figure."""
