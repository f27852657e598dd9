"""Playing whole episodes with a trained policy, without learning."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from etd.core.keys import named
from etd.core.types import Array, Key, PyTree, Rollout
from etd.envs import autoreset
from etd.envs.base import DeviceEnv
from etd.train.collect import collect, first_hidden
from etd.train.experiment import Experiment
from etd.train.learn import Minds


class Episodes(NamedTuple):
    """One episode of each of E environments, from its start; rows after an episode's end are not part of it."""

    start: PyTree
    """[E, ...] the first environment states"""
    rollout: Rollout
    """[max_steps, E, ...]"""
    bonus: Array
    """[max_steps, E] before standardising, under a memory that was empty at the start"""
    length: Array
    """[E]"""
    total: Array
    """[E] return"""
    success: Array
    """[E] bool"""
    achieved: Array | None
    """[E, K] bool: what each unlocked"""


def play(experiment: Experiment, env: DeviceEnv, minds: Minds, episodes: int, key: Key, greedy: bool) -> Episodes:
    """One seed's policy in ``episodes`` fresh levels. ``greedy`` takes the likeliest action, else it is sampled."""
    steps = env.spec.max_steps
    envs = autoreset.begin(env, named(key, "levels"), episodes)
    # Nobody looks at what follows an episode, so one more start will do for it, however often it is taken.
    pool = autoreset.generate(env, named(key, "levels"), envs, 1)
    hidden = first_hidden(experiment.ppo.features, episodes)
    _, _, rollout = collect(
        env, minds.policy, envs, hidden, pool, steps, named(key, "play"), experiment.bonus.needs, greedy
    )
    fresh = experiment.bonus.init(named(key, "memory"), env.spec, episodes)
    state = minds.bonus._replace(memory=fresh.memory)
    _, scored = experiment.bonus.score(state, rollout, named(key, "score"))
    first = jnp.cumsum(rollout.done, 0) - rollout.done == 0
    success = rollout.step.success & first
    return Episodes(
        envs.now.state,
        rollout,
        scored.bonus,
        first.sum(0),
        (rollout.step.reward * first).sum(0),
        success.any(0),
        None if rollout.step.achieved is None else (rollout.step.achieved & first[:, :, None]).any(0),
    )


def replay(env: DeviceEnv, start: PyTree, actions: Array, key: Key) -> PyTree:
    """The states of one episode, [T+1, ...], from its first state and its actions [T, ...]."""

    def advance(state: PyTree, now: tuple[Array, Key]) -> tuple[PyTree, PyTree]:
        action, step_key = now
        state, _ = env.step(state, action, step_key)
        return state, state

    _, states = jax.lax.scan(advance, start, (actions, jax.random.split(key, actions.shape[0])))
    return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), start, states)
