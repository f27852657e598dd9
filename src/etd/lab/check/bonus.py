"""Does a bonus behave? Findings in plain words from a few rollouts of a random policy."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from etd.agent.ppo import PPO
from etd.bonuses import BonusState, LearnedBonus, Scored, visits
from etd.core.keys import named
from etd.core.types import Array, Key, Metrics, PyTree, Rollout
from etd.lab.check.finding import Finding
from etd.training import backend, compiled, memory
from etd.training.config import bonus_name
from etd.training.experiment import Experiment
from etd.training.validate import check

STEPS = 128
ROUNDS = 6


class Round(NamedTuple):
    """A rollout, its bonus, and the metrics of training the model on it."""

    rollout: Rollout
    bonus: Array
    fitted: Metrics


def examine(experiment: Experiment) -> list[Finding]:
    """Score and train on ROUNDS rollouts of the untrained policy, whose actions are uniform."""
    experiment = prepare(experiment)
    key = jax.random.key(experiment.seed)

    def study(state: BonusState, rollout: Rollout, key: Key) -> tuple[BonusState, Scored, Metrics]:
        state, scored = experiment.bonus.score(state, rollout, named(key, "score"))
        state, metrics = experiment.bonus.improve(state, rollout, scored.trace, named(key, "model"))
        return state, scored, metrics

    with compiled.precision(experiment), backend.open(experiment) as agents:
        state = agents.start()
        start = bonus_state = jax.tree.map(lambda leaf: leaf[0], state.learner.bonus)
        study, rounds = jax.jit(study), []
        for k in range(ROUNDS):
            state, rollouts = agents.collect(state)
            rollout = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), rollouts)
            bonus_state, scored, fitted = study(bonus_state, rollout, named(key, "study", k))
            rounds.append(Round(rollout, scored.bonus, fitted))
        fresh = bonus_state._replace(memory=start.memory)
        score = jax.jit(lambda rollout: experiment.bonus.score(fresh, rollout, key)[1].bonus)
        last = rounds[-1].rollout
        return [
            _finite(rounds),
            _varies(rounds),
            _falls_on_revisits(score(last), last),
            _forgets(score, last),
            *_learns(rounds, bonus_name(experiment.bonus)),
        ]


def prepare(experiment: Experiment) -> Experiment:
    """The experiment as it is examined, or a UserError if it cannot be."""
    batch = STEPS * experiment.num_envs
    experiment = check(replace(_fitted(experiment, batch), rollout_steps=STEPS, seeds=1))
    memory.refuse_training(experiment)
    return experiment


def _fitted(experiment: Experiment, batch: int) -> Experiment:
    """The experiment with minibatches that fit these rollouts."""
    for part in ("ppo", "bonus"):
        size = getattr(getattr(experiment, part), "minibatch", batch)
        if isinstance(getattr(experiment, part), PPO | LearnedBonus) and batch % size:
            small = replace(getattr(experiment, part), minibatch=min(batch, 512) if batch % 512 == 0 else batch)
            experiment = replace(experiment, **{part: small})
    return experiment


def _finite(rounds: list[Round]) -> Finding:
    values = np.concatenate([np.ravel(one.bonus) for one in rounds])
    bad = int((~np.isfinite(values)).sum())
    if bad:
        return Finding(False, f"{bad:,} of {values.size:,} steps have a NaN or infinite bonus")
    return Finding(True, f"all {values.size:,} steps have a finite bonus")


def _varies(rounds: list[Round]) -> Finding:
    last = np.asarray(rounds[-1].bonus)
    mean, spread = float(last.mean()), float(last.std())
    if spread == 0:
        return Finding(False, f"the bonus is {mean:.3g} at every step, which standardising turns into 0")
    return Finding(True, f"the bonus varies: mean {mean:.3g}, std {spread:.3g}, max {last.max():.3g}")


def _falls_on_revisits(bonus: Array, rollout: Rollout) -> Finding:
    """Compare first visits with revisits within an episode, by exact observation, from an empty memory."""
    seen = visits.empty(rollout.done.shape[1], STEPS)
    count = np.asarray(visits.count(seen, rollout)[1])
    first, again = np.asarray(bonus)[count == 1], np.asarray(bonus)[count > 1]
    if not again.size:
        return Finding(True, "no observation occurred twice within an episode, so revisits could not be checked")
    if first.mean() == 0:
        return Finding(False, "observations that are new in their episode get no bonus")
    share = float(again.mean() / first.mean())
    words = f"observations seen before in their episode get {share:.0%} of the bonus of new ones"
    return Finding(share < 1, f"{words} ({again.size:,} revisits)")


def _forgets(score: PyTree, rollout: Rollout) -> Finding:
    """End every episode halfway and give each environment's first half to its neighbour: the bonus after that end must
    not change."""
    half = STEPS // 2
    ended = rollout._replace(step=rollout.step._replace(terminated=rollout.step.terminated.at[half - 1].set(True)))

    def moved(leaf: Array) -> Array:
        return leaf.at[:half].set(jnp.roll(leaf[:half], 1, 1))

    swapped = jax.tree.map(moved, ended)
    one, two = np.asarray(score(ended))[half:], np.asarray(score(swapped))[half:]
    apart = float(np.abs(one - two).max())
    forgets = apart <= 1e-4 * max(float(np.abs(one).max()), 1e-30)
    said = "does not depend on" if forgets else f"changes by up to {apart:.3g} with"
    return Finding(forgets, f"after an episode ends, the bonus {said} what came before")


def _learns(rounds: list[Round], name: str) -> list[Finding]:
    found = []
    for metric in [m for m in rounds[0].fitted if m.endswith("loss")]:
        before, after = (float(one.fitted[metric]) for one in (rounds[0], rounds[-1]))
        if abs(before) < 1e-6:  # AGAC's: its imitator already acts like the untrained policy
            found.append(Finding(True, f"the model's {metric.replace('_', ' ')} is 0 from the start: nothing to learn"))
            continue
        falls = after < before
        verb = "fell" if falls else "did not fall"
        found.append(Finding(falls, f"the model's {metric.replace('_', ' ')} {verb}: {before:.3g} to {after:.3g}"))
    return found or [Finding(True, f"{name} has no model to train")]
