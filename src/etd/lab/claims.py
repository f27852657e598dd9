"""What the paper says of its figures, each sentence with a test of our numbers.

A claim is judged by interquartile means over seeds: of the final return, or of the return averaged over training, which
rewards learning early. A claim about many trainings of which some are missing or unfinished fails as soon as one of the
others speaks against it, and until then "holds so far"; without any it is "not run".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from etd.lab import plot
from etd.lab.figures import EIGHT, NOISY
from etd.lab.report import Judged
from etd.lab.store import Run

Runs: TypeAlias = Mapping[tuple[str, str], Run]
"""Finished runs by (task, method)."""


class Finding(NamedTuple):
    """Does the claim hold by these numbers, and were all there that it speaks of?"""

    holds: bool
    ours: str
    whole: bool = True


Judge: TypeAlias = Callable[[Runs], Finding]
"""What cannot be judged at all for want of a run is a KeyError that names it."""

NEAR_OPTIMAL = 0.85
NOT_LEARNED = 0.1
AHEAD = 0.005
"""By so much at least: two methods that learn nothing are not ahead of each other."""


@dataclass(frozen=True)
class Claim:
    """A sentence about a figure, and how it is judged."""

    words: str
    judge: Judge


def judge(figure: str, runs: Runs) -> list[Judged]:
    """The figure's claims against what has run."""
    verdicts = []
    for claim in CLAIMS.get(figure, []):
        try:
            holds, ours, whole = claim.judge(runs)
        except KeyError as error:
            verdicts.append(Judged(claim.words, f"{'/'.join(error.args[0])} is missing", "not run"))
        else:
            verdicts.append(Judged(claim.words, ours, ("holds" if whole else "holds so far") if holds else "fails"))
    return verdicts


def final(run: Run) -> float:
    """Interquartile mean over seeds of the last return."""
    return _middle(plot.by_seed(run, "return").values[:, -1])


def average(run: Run) -> float:
    """Interquartile mean over seeds of the return averaged over training; no finished episode counts as 0."""
    return _middle(np.nan_to_num(plot.by_seed(run, "return").values).mean(1))


def _middle(values: np.ndarray) -> float:
    return float(plot.centre(values[:, None])[0])


def _below(method: str, tasks: tuple[str, ...], limit: float) -> Judge:
    """The method's final return stays below ``limit`` on every task."""

    def judge(runs: Runs) -> Finding:
        finals = {task: final(runs[task, method]) for task in tasks if (task, method) in runs}
        if not finals:
            raise KeyError((tasks[0], method))
        worst, whole = max(finals, key=lambda task: finals[task]), len(finals) == len(tasks)
        ours = f"final return at most {finals[worst]:.2f} ({worst})"
        return Finding(finals[worst] < limit, ours + _of(len(finals), len(tasks), "levels"), whole)

    return judge


def _above(task: str, method: str, limit: float) -> Judge:
    def judge(runs: Runs) -> Finding:
        value = final(runs[task, method])
        return Finding(value >= limit, f"final return {value:.2f}")

    return judge


def _best(method: str, others: tuple[str, ...], tasks: tuple[str, ...]) -> Judge:
    """The method's average return is the highest on every task, by AHEAD."""

    def judge(runs: Runs) -> Finding:
        won, said, pairs = 0, [], 0
        for task in tasks:
            rivals = {other: average(runs[task, other]) for other in others if (task, other) in runs}
            if rivals and (task, method) in runs:
                ours, pairs = average(runs[task, method]), pairs + len(rivals)
                rival = max(rivals, key=lambda other: rivals[other])
                won += ours >= rivals[rival] + AHEAD
                said.append(f"{task} {ours:.2f} against {rivals[rival]:.2f} ({rival})")
        if not said:
            missing = [(task, name) for task in tasks for name in (method, *others) if (task, name) not in runs]
            raise KeyError(missing[0])
        every = len(tasks) * len(others)
        words = f"first on {won} of {len(said)}: " + "; ".join(said) + _of(pairs, every, "comparisons")
        return Finding(won == len(said), words, pairs == every)

    return judge


def _of(count: int, every: int, what: str) -> str:
    return "" if count == every else f"; {count} of {every} {what} were run"


def _close(task: str, methods: tuple[str, ...], within: float) -> Judge:
    """The methods' average returns lie within ``within`` of each other."""

    def judge(runs: Runs) -> Finding:
        values = {method: average(runs[task, method]) for method in methods}
        said = ", ".join(f"{method} {value:.2f}" for method, value in values.items())
        return Finding(max(values.values()) - min(values.values()) <= within, f"average return: {said}")

    return judge


def _twice_as_fast(task: str, method: str, other: str, level: float) -> Judge:
    """Median steps to a return of ``level``: the other needs 1.5 times as many at least."""

    def judge(runs: Runs) -> Finding:
        ours, theirs = (_steps_to(runs[task, name], level) for name in (method, other))
        words = f"return {level} after {_say(ours)} against {_say(theirs)}"
        return Finding(bool(theirs >= 1.5 * ours and np.isfinite(ours)), words)

    return judge


def _steps_to(run: Run, level: float) -> float:
    """Median over seeds; infinite if half of them do not get there."""
    _, steps, values = plot.by_seed(run, "return")
    firsts = [steps[(row >= level).argmax()] if (row >= level).any() else np.inf for row in values]
    return float(np.median(firsts))


def _say(steps: float) -> str:
    return f"{steps / 1e6:.1f} M steps" if np.isfinite(steps) else "more steps than were run"


_RIVALS = ("deir", "noveld", "e3b", "ec", "ngu", "rnd", "count", "none")

CLAIMS: dict[str, list[Claim]] = {
    "bonuses": [
        Claim("ETD solves DoorKey-16x16", _above("DoorKey-16x16", "etd", NEAR_OPTIMAL)),
        Claim("PPO does not learn DoorKey-16x16 without a bonus", _below("none", ("DoorKey-16x16",), NOT_LEARNED)),
        Claim("RND is almost without effect on DoorKey-16x16", _below("rnd", ("DoorKey-16x16",), NOT_LEARNED)),
        Claim("ETD is ahead of all others on DoorKey-16x16", _best("etd", _RIVALS, ("DoorKey-16x16",))),
    ],
    "minigrid": [
        Claim(
            f"ETD is near-optimal (return {NEAR_OPTIMAL}) on ObstructedMaze-Full within 20 M steps",
            _above("ObstructedMaze-Full", "etd", NEAR_OPTIMAL),
        ),
        Claim(
            "ETD is about twice as sample-efficient as NovelD on ObstructedMaze-Full",
            _twice_as_fast("ObstructedMaze-Full", "etd", "noveld", 0.8),
        ),
        Claim("ETD is ahead of all others on all eight levels", _best("etd", _RIVALS, EIGHT)),
        Claim(f"PPO does not learn (return {NOT_LEARNED}) without a bonus", _below("none", EIGHT, NOT_LEARNED)),
        Claim("RND is almost without effect", _below("rnd", EIGHT, NOT_LEARNED)),
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
}
"""By figure."""
