"""``python -m tests.campaign --trials 50``: interrupt trainings at random and see that they end as if nothing had been.

Each trial trains small agents with an environment on the device or on the host, by ``etd train``, ``etd resume`` or two
at once by ``etd reproduce`` and ``etd compare``; interrupts them one to three times by SIGKILL, SIGTERM, SIGINT or a
simulated power cut; goes on to the end; and compares every array of the last checkpoint and every row of the metrics,
bit for bit, with a training that was left alone. It also looks at exit statuses and at what is left behind.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.campaign import trial
from tests.campaign.trial import CASES, Case, Trial, TrialError, Whole


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=50, help="how many; all 24 cases in turn (default 50)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and of the order (default 0)")
    parser.add_argument("--at-once", type=int, default=1, help="trials side by side (default 1)")
    parser.add_argument("--only", default="", help="only cases with these words, such as 'host resume cut'")
    parser.add_argument("--folder", type=Path, help="where to work, and where failed trials stay")
    options = parser.parse_args(words)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="campaign-"))
    cases = [case for case in CASES if set(options.only.split()) <= {case.env, case.phase, case.how}]
    chance = random.Random(options.seed)
    order: list[Case] = []
    while len(order) < options.trials:
        order += chance.sample(cases, len(cases))
    order = order[: options.trials]
    begun = {env: _half(env, folder) for env in sorted({case.env for case in order if case.phase != "many"})}
    wholes = {key: _whole(*key, folder) for key in sorted({(case.env, case.phase == "many") for case in order})}

    def one(number: int) -> bool:
        case = order[number]
        where = folder / f"trial{number}"
        title = f"{number + 1:4}  {case.env:6}  {case.phase:6}  {case.how:7}"
        try:
            whole, half = wholes[case.env, case.phase == "many"], begun.get(case.env, where)
            how = trial.run(case, _empty(where), whole, half, options.seed * 10_000 + number)
        except TrialError as error:
            print(f"{title}  NOT EXACT: {error} (see {where})", flush=True)
            return False
        print(f"{title}  exact  ({how})", flush=True)
        return True

    with ThreadPoolExecutor(options.at_once) as pool:
        exact = sum(pool.map(one, range(options.trials)))
    print(f"{exact} of {options.trials} exact")
    if exact == options.trials and options.folder is None:
        shutil.rmtree(folder)
    return int(exact < options.trials)


def _whole(env: str, many: bool, folder: Path) -> Whole:
    """A training without interruption."""
    case = Case(env, "many" if many else "train", "SIGKILL")
    for turn in range(1 + many):  # the second time, what it compiles is in the cache; else ``_half`` has seen to that
        found = Trial(case, _empty(folder / f"{env}-{case.phase}-{turn}"), random.Random(turn)).finish()
    return found


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _half(env: str, folder: Path) -> Path:
    """A run that was trained for half of its steps."""
    half = Trial(Case(env, "train", "SIGKILL"), _empty(folder / f"{env}-half"), random.Random(0))
    before, trial.STEPS = trial.STEPS, trial.STEPS // 2
    try:
        half.finish()
    finally:
        trial.STEPS = before
    return half.out


if __name__ == "__main__":
    sys.exit(main())
