"""What the paper says of its figures, each sentence with a test of our numbers.

A claim is judged by interquartile means over seeds: of the final return, or of the return averaged over training, which
rewards learning early. It is "not run" while a training that it needs is missing or unfinished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from etd.lab import plot
from etd.lab.figures import EIGHT, NOISY
from etd.lab.report import Judged
from etd.lab.store import Run

Runs: TypeAlias = Mapping[tuple[str, str], Run]
"""Finished runs by (task, method)."""
Judge: TypeAlias = Callable[[Runs], tuple[bool, str]]
"""(does the claim hold?, our numbers); a missing run is a KeyError."""

NEAR_OPTIMAL = 0.85
NOT_LEARNED = 0.1


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
            holds, ours = claim.judge(runs)
        except KeyError as error:
            verdicts.append(Judged(claim.words, f"{'/'.join(error.args[0])} is missing", "not run"))
        else:
            verdicts.append(Judged(claim.words, ours, "holds" if holds else "fails"))
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

    def judge(runs: Runs) -> tuple[bool, str]:
        finals = {task: final(runs[task, method]) for task in tasks}
        worst = max(finals, key=lambda task: finals[task])
        return finals[worst] < limit, f"final return at most {finals[worst]:.2f} ({worst})"

    return judge


def _above(task: str, method: str, limit: float) -> Judge:
    def judge(runs: Runs) -> tuple[bool, str]:
        value = final(runs[task, method])
        return value >= limit, f"final return {value:.2f}"

    return judge


def _best(method: str, others: tuple[str, ...], tasks: tuple[str, ...]) -> Judge:
    """The method's average return is the highest on every task."""

    def judge(runs: Runs) -> tuple[bool, str]:
        won, said = 0, []
        for task in tasks:
            ours = average(runs[task, method])
            rivals = {other: average(runs[task, other]) for other in others}
            rival = max(rivals, key=lambda other: rivals[other])
            won += ours >= rivals[rival]
            said.append(f"{task} {ours:.2f} against {rivals[rival]:.2f} ({rival})")
        return won == len(tasks), f"first on {won} of {len(tasks)}: " + "; ".join(said)

    return judge


def _close(task: str, methods: tuple[str, ...], within: float) -> Judge:
    """The methods' average returns lie within ``within`` of each other."""

    def judge(runs: Runs) -> tuple[bool, str]:
        values = {method: average(runs[task, method]) for method in methods}
        said = ", ".join(f"{method} {value:.2f}" for method, value in values.items())
        return max(values.values()) - min(values.values()) <= within, f"average return: {said}"

    return judge


def _twice_as_fast(task: str, method: str, other: str, level: float) -> Judge:
    """Median steps to a return of ``level``: the other needs 1.5 times as many at least."""

    def judge(runs: Runs) -> tuple[bool, str]:
        ours, theirs = (_steps_to(runs[task, name], level) for name in (method, other))
        return theirs >= 1.5 * ours and np.isfinite(ours), f"return {level} after {_say(ours)} against {_say(theirs)}"

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
