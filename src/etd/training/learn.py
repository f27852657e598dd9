"""One training iteration of one seed, in order: act, score, mix, improve the model, improve the policy, record."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from etd.bonuses import BonusState
from etd.core.keys import named
from etd.core.moments import Moments
from etd.core.types import Array, EnvSpec, Key, Metrics, PyTree, Rollout
from etd.envs import autoreset
from etd.envs.base import DeviceEnv
from etd.nets.model import Learner
from etd.training import ledger as ledgers
from etd.training.collect import collect, first_hidden
from etd.training.experiment import Experiment
from etd.training.ledger import Ledger


class LearnerState(NamedTuple):
    """Everything that learning changes."""

    policy: Learner
    bonus: BonusState
    bonus_moments: Moments
    advantage_moments: Moments
    ledger: Ledger


class TrainState(NamedTuple):
    """A run's whole state; two runs with equal states continue identically."""

    key: Key
    """[] the seed's root key, which never changes: every key is derived from it by name and iteration"""
    iteration: Array
    """[] int32"""
    alive: Array
    """[] bool: False after a non-finite loss; the seed is then frozen"""
    learner: LearnerState
    envs: PyTree
    """the running environments: an autoreset.Envs, or a host's Running"""
    hidden: Array
    """[N, H]"""


def init(experiment: Experiment, env: DeviceEnv, key: Key) -> TrainState:
    """The first state of one seed."""
    return assemble(experiment, env.spec, autoreset.begin(env, key, experiment.num_envs), key)


def assemble(experiment: Experiment, spec: EnvSpec, envs: PyTree, key: Key) -> TrainState:
    """A fresh learner for running environments."""
    num_envs, ppo = experiment.num_envs, experiment.ppo
    learner = LearnerState(
        ppo.init(named(key, "policy"), spec),
        experiment.bonus.init(named(key, "bonus"), spec, num_envs),
        experiment.mix.init(),
        Moments.start((num_envs,)),
        ledgers.start(num_envs, spec),
    )
    hidden = first_hidden(ppo, num_envs)
    return TrainState(key, jnp.zeros((), jnp.int32), jnp.ones((), bool), learner, envs, hidden)


def iterate(experiment: Experiment, env: DeviceEnv, state: TrainState) -> tuple[TrainState, Metrics]:
    """Collect a rollout and learn from it."""
    envs, hidden, rollout, repeated = act(experiment, env, state)
    state, metrics = learn_from_rollout(experiment, env.spec, state, envs, hidden, rollout)
    return state, {**metrics, "repeated_starts": repeated}


def act(experiment: Experiment, env: DeviceEnv, state: TrainState) -> tuple[autoreset.Envs, Array, Rollout, Array]:
    """One rollout under the current policy: environments and recurrent states afterwards, the rollout, and how many
    starts were reused."""
    key = iteration_key(state)
    size = autoreset.pool_size(env.spec, experiment.rollout_steps)
    pool = autoreset.generate(env, state.key, state.envs, size)
    envs, hidden, rollout = collect(
        env, state.learner.policy, state.envs, state.hidden, pool, experiment.rollout_steps, key, experiment.bonus.needs
    )
    return envs, hidden, rollout, autoreset.repeated(pool, envs)


def iteration_key(state: TrainState) -> Key:
    return named(state.key, "iteration", state.iteration)


def learn_from_rollout(
    experiment: Experiment, spec: EnvSpec, state: TrainState, envs: PyTree, hidden: Array, rollout: Rollout
) -> tuple[TrainState, Metrics]:
    """The part of an iteration after acting, which left ``envs`` and ``hidden``; the same for device and host
    environments. A seed with a non-finite loss is frozen at its last good state."""
    learner, metrics = learn(experiment, spec, state.learner, rollout, state.iteration, iteration_key(state))
    watched = [value for name, value in metrics.items() if name.endswith(("loss", "grad_norm"))]
    finite = jnp.isfinite(jnp.stack(watched)).all()
    alive = state.alive & finite
    new = TrainState(state.key, state.iteration + 1, alive, learner, envs, hidden)
    frozen = state._replace(iteration=state.iteration + 1, alive=alive)
    # A condition, not a choice per array: on a CPU those alone took a sixth of the time to compile.
    return jax.lax.cond(alive, lambda: new, lambda: frozen), {**metrics, "alive": alive}


def learn(
    experiment: Experiment, spec: EnvSpec, learner: LearnerState, rollout: Rollout, iteration: Array, key: Key
) -> tuple[LearnerState, Metrics]:
    """Score, mix, improve the model, improve the policy, record."""
    bonus, ppo = experiment.bonus, experiment.ppo
    bonus_state, scored = bonus.score(learner.bonus, rollout, named(key, "score"))
    bonus_moments, reward = experiment.mix(learner.bonus_moments, rollout.step.reward, scored.bonus)
    bonus_state, model_metrics = bonus.improve(bonus_state, rollout, scored.trace, named(key, "model"))
    policy, advantage_moments, ppo_metrics = ppo.improve(
        learner.policy, learner.advantage_moments, rollout, reward, named(key, "ppo")
    )
    step = (iteration + 1) * experiment.steps_per_iteration
    ledger, episode_metrics = ledgers.record(learner.ledger, spec, rollout, step)
    extrinsic = experiment.mix.extrinsic * rollout.step.reward
    paid = jnp.abs(extrinsic).sum()
    metrics = {
        "step": step,
        **episode_metrics,
        "bonus_mean": scored.bonus.mean(),
        "bonus_std": scored.bonus.std(),
        "bonus_max": scored.bonus.max(),
        "bonus_scale": jnp.sqrt(bonus_moments.var),
        # Size of the bonus relative to the task's reward; NaN while that is zero.
        "bonus_ratio": jnp.where(paid > 0, jnp.abs(reward - extrinsic).sum() / paid, jnp.nan),
        **scored.metrics,
        **{f"model_{name}": value for name, value in model_metrics.items()},
        **{f"ppo_{name}": value for name, value in ppo_metrics.items()},
    }
    return LearnerState(policy, bonus_state, bonus_moments, advantage_moments, ledger), metrics
