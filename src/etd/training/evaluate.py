"""Playing whole episodes with a trained policy, without learning."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from etd.core.keys import named
from etd.core.types import Array, EnvSpec, Key, PyTree, Rollout
from etd.envs import autoreset
from etd.envs.autoreset import Envs, StartPool
from etd.envs.base import DeviceEnv
from etd.training.collect import collect, first_hidden, step_keys
from etd.training.experiment import Experiment
from etd.training.learn import LearnerState

CHUNK = 64
"""Steps between checks whether every episode has ended."""


class Outcome(NamedTuple):
    """The outcome of one episode in each of E environments."""

    length: Array
    """[E]"""
    total: Array
    """[E] return"""
    success: Array
    """[E] bool"""
    achieved: Array | None
    """[E, K] bool: achievements unlocked"""


_Carry: TypeAlias = tuple[Array, Envs, Array, Array, Outcome]
"""Number of chunks played, environments, recurrent states, which episodes are still running, and the outcome so far."""


class Episodes(NamedTuple):
    """One episode in each of E environments, from its start; ignore the rows after an episode's end."""

    start: PyTree
    """[E, ...] the first environment states"""
    rollout: Rollout
    """[max_steps, E, ...]"""
    bonus: Array
    """[max_steps, E] before standardising, with a memory that is empty at the start"""
    keys: Key
    """[max_steps, E] the key of each environment step"""
    outcome: Outcome


def play(
    experiment: Experiment, env: DeviceEnv, learner: LearnerState, episodes: int, key: Key, greedy: bool
) -> Episodes:
    """One seed's policy in ``episodes`` fresh levels. ``greedy`` takes the most likely action instead of sampling."""
    steps = env.spec.max_steps
    envs, pool = _levels(env, episodes, key)
    hidden = first_hidden(experiment.ppo, episodes)
    play_key = named(key, "play")
    _, _, rollout = collect(env, learner.policy, envs, hidden, pool, steps, play_key, experiment.bonus.needs, greedy)
    keys = jax.vmap(lambda step_key: autoreset.step_keys(step_key, episodes))(step_keys(play_key, steps))
    fresh = experiment.bonus.init(named(key, "memory"), env.spec, episodes)
    state = learner.bonus._replace(memory=fresh.memory)
    _, scored = experiment.bonus.score(state, rollout, named(key, "score"))
    went = _outcome(env.spec, rollout, jnp.ones(episodes, bool))
    return Episodes(envs.now.state, rollout, scored.bonus, keys, went)


def outcome(
    experiment: Experiment, env: DeviceEnv, learner: LearnerState, episodes: int, key: Key, greedy: bool
) -> Outcome:
    """The outcome of such episodes without storing them or their bonus; stops when the longest has ended, or soon after
    max_steps."""
    envs, pool = _levels(env, episodes, key)

    def unfinished(carry: _Carry) -> Array:
        return carry[3].any() & (carry[0] * CHUNK <= env.spec.max_steps)

    def more(carry: _Carry) -> _Carry:
        chunk, envs, hidden, playing, before = carry
        envs, hidden, rollout = collect(
            env, learner.policy, envs, hidden, pool, CHUNK, named(key, "play", chunk), frozenset(), greedy
        )
        now = _outcome(env.spec, rollout, playing)
        sums = jax.tree.map(lambda old, new: old | new if old.dtype == bool else old + new, before, now)
        return chunk + 1, envs, hidden, playing & ~rollout.done.any(0), sums

    nothing, none = jnp.zeros(episodes), jnp.zeros(episodes, bool)
    achieved = jnp.zeros((episodes, len(env.spec.achievements)), bool) if env.spec.achievements else None
    begun = Outcome(nothing.astype(jnp.int32), nothing, none, achieved)
    hidden = first_hidden(experiment.ppo, episodes)
    return jax.lax.while_loop(unfinished, more, (jnp.int32(0), envs, hidden, ~none, begun))[-1]


def _levels(env: DeviceEnv, episodes: int, key: Key) -> tuple[Envs, StartPool]:
    """Fresh levels. What follows an episode is ignored, so one more start is enough, however often it is reused."""
    envs = autoreset.begin(env, named(key, "levels"), episodes)
    return envs, autoreset.generate(env, named(key, "levels"), envs, 1)


def _outcome(spec: EnvSpec, rollout: Rollout, playing: Array) -> Outcome:
    """The outcome within this rollout of the episodes still ``playing`` [E]."""
    step, now = rollout.step, playing & (jnp.cumsum(rollout.done, 0) - rollout.done == 0)
    achieved = None if step.achieved is None else (step.achieved & now[:, :, None]).any(0)
    return Outcome(now.sum(0), (step.reward * now).sum(0), (spec.success(step) & now).any(0), achieved)


def replay(env: DeviceEnv, start: PyTree, actions: Array, keys: Key) -> PyTree:
    """The states of one episode, [T+1, ...], from its first state, its actions [T, ...] as passed to the environment
    and the keys [T] of its steps."""

    def advance(state: PyTree, now: tuple[Array, Key]) -> tuple[PyTree, PyTree]:
        action, step_key = now
        state, _ = env.step(state, action, step_key)
        return state, state

    _, states = jax.lax.scan(advance, start, (actions, keys))
    return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), start, states)
