"""PPO with ETD's bonus inside jit: a whole training is one compiled function, and many seeds are one vmap of it.

    pip install 'etd[gymnax]'
    python jax_etd.py                                                # MountainCar: solved after some 100,000 steps
    python jax_etd.py --intrinsic 0                                  # without the bonus, it is not

A bonus is a frozen dataclass with three pure functions: ``init`` makes its state, ``score`` gives the bonus of a
rollout, ``improve`` trains its model on it. Carry the state beside the policy's, and call the two once per rollout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import optax
import tyro

import etd

Array = jax.Array


@dataclass(frozen=True)
class Config:
    """What can be set on the command line."""

    env: str = "MountainCar-v0"
    intrinsic: float = 0.2
    """weight of the bonus; MountainCar's own reward is -1 per step, which the default of 0.01 would not outweigh"""
    seeds: int = 2
    iterations: int = 100
    report_every: int = 10
    """iterations that run in one call"""
    num_envs: int = 16
    rollout_steps: int = 128
    epochs: int = 4
    minibatch: int = 256
    """of the policy and of the bonus; it has to divide num_envs * rollout_steps"""
    learning_rate: float = 1e-3
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_coef: float = 0.01
    value_coef: float = 0.5


class Net(nn.Module):
    """Logits [..., A] and values [...] of observations [..., D]."""

    actions: int

    @nn.compact
    def __call__(self, obs: Array) -> tuple[Array, Array]:
        def mlp(size: int, name: str) -> Array:
            x = obs
            for layer in range(2):
                x = nn.tanh(nn.Dense(64, name=f"{name}_{layer}")(x))
            return nn.Dense(size, name=name)(x)

        return mlp(self.actions, "actor"), mlp(1, "critic")[..., 0]


class State(NamedTuple):
    """All that a training carries from one rollout to the next."""

    params: Any
    optimiser: Any
    env: Any
    obs: Array
    """[N, D]"""
    bonus: etd.BonusState
    moments: Any
    """by which the bonus is standardised"""


class Step(NamedTuple):
    """One step of all environments, [N, ...]; a rollout is [T, N, ...]."""

    obs: Array
    action: Array
    next_obs: Array
    reward: Array
    terminated: Array
    truncated: Array
    log_prob: Array


def make_train(config: Config) -> tuple[Callable[..., State], Callable[..., tuple[State, dict[str, Array]]]]:
    """``init`` makes a seed's first state from a key; ``train`` goes on from a state, one iteration for each key of
    [I], and returns the state and the metrics [I]."""
    env, env_params = gymnax.make(config.env)
    actions, obs_shape = env.action_space(env_params).n, env.observation_space(env_params).shape
    assert len(obs_shape) == 1, "this file is for vectors; bonuses also see images, with kind='grid' or 'pixels'"
    # Numbers about as large as one another: neither the policy nor the bonus would notice MountainCar's speed of 0.07.
    high = jnp.asarray(env.observation_space(env_params).high)
    scale = jnp.where(high < 1e3, high, 1.0)  # some are unbounded
    net = Net(actions)
    optimiser = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(config.learning_rate, eps=1e-5))
    bonus, mix = etd.ETD(minibatch=config.minibatch), etd.Mix(intrinsic=config.intrinsic)
    spec = etd.EnvSpec(
        name=config.env,
        obs_shape=obs_shape,
        obs_dtype="float32",
        obs_high=1.0,
        action=etd.Discrete(actions),
        max_steps=int(env_params.max_steps_in_episode),  # sizes the bonus's memory of an episode: never too small
        shortest=1,
        kind="vector",
    )

    def init(key: Array) -> State:
        net_key, env_key, bonus_key = jax.random.split(key, 3)
        obs, env_state = jax.vmap(env.reset, (0, None))(jax.random.split(env_key, config.num_envs), env_params)
        obs = obs / scale
        params = net.init(net_key, obs)
        bonus_state = bonus.init(bonus_key, spec, config.num_envs)
        return State(params, optimiser.init(params), env_state, obs, bonus_state, mix.init())

    def play(state: State, key: Array) -> tuple[State, Step]:
        act_key, env_key = jax.random.split(key)
        logits, _ = net.apply(state.params, state.obs)
        action = jax.random.categorical(act_key, logits)
        log_prob = chosen(logits, action)
        keys = jax.random.split(env_key, config.num_envs)
        new_obs, env_state, reward, terminated, truncated, info = jax.vmap(env.step, (0, 0, 0, None))(
            keys, state.env, action, env_params
        )
        # Where an episode ends, new_obs is already the next one's first observation. What the action led to is in info.
        # Where it is not (gymnax before 1.0; Craftax with auto_reset=True), step without autoreset and reset yourself:
        #     next_obs, after, ... = env.step_env(...);  new_obs = jnp.where(done, first_obs, next_obs)
        next_obs = info["final_observation"] / scale
        step = Step(state.obs, action, next_obs, reward, terminated, truncated, log_prob)
        return state._replace(env=env_state, obs=new_obs / scale), step

    def iteration(state: State, key: Array) -> tuple[State, dict[str, Array]]:
        play_key, score_key, improve_key, learn_key = jax.random.split(key, 4)
        state, steps = jax.lax.scan(play, state, jax.random.split(play_key, config.rollout_steps))

        # Score before improving: the model must not have seen the rollout. And mix before estimating advantages: only
        # thus do the steps that lead to something new get their share.
        rollout = etd.Rollout.of(*steps[:6])
        bonus_state, scored = bonus.score(state.bonus, rollout, score_key)
        moments, reward = mix(state.moments, steps.reward, scored.bonus)
        bonus_state, metrics = bonus.improve(bonus_state, rollout, scored.trace, improve_key)

        state = learn(state._replace(bonus=bonus_state, moments=moments), steps, reward, learn_key)
        ends = steps.terminated | steps.truncated
        return state, {
            "solved": steps.terminated.sum() / jnp.maximum(ends.sum(), 1),
            "bonus": scored.bonus.mean(),
            "bonus_loss": metrics["loss"],
        }

    def learn(state: State, steps: Step, reward: Array, key: Array) -> State:
        _, value = net.apply(state.params, steps.obs)
        _, next_value = net.apply(state.params, steps.next_obs)
        gain = advantages(reward, value, next_value, steps, config)
        columns = (steps.obs, steps.action, steps.log_prob, gain, gain + value)
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), columns)  # [T, N, ...] to [T * N, ...]

        def loss(params: Any, batch: tuple[Array, ...]) -> Array:
            obs, action, old, gain, target = batch
            logits, value = net.apply(params, obs)
            ratio = jnp.exp(chosen(logits, action) - old)
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            clipped = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
            policy_loss = -jnp.minimum(ratio * gain, clipped * gain).mean()
            entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1).mean()
            value_loss = jnp.square(value - target).mean()
            return policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy

        def update(carry: tuple[Any, Any], batch: tuple[Array, ...]) -> tuple[tuple[Any, Any], None]:
            params, moments = carry
            change, moments = optimiser.update(jax.grad(loss)(params, batch), moments, params)
            return (optax.apply_updates(params, change), moments), None

        def epoch(carry: tuple[Any, Any], key: Array) -> tuple[tuple[Any, Any], None]:
            order = jax.random.permutation(key, config.num_envs * config.rollout_steps).reshape(-1, config.minibatch)
            return jax.lax.scan(update, carry, jax.tree.map(lambda x: x[order], rows))

        keys = jax.random.split(key, config.epochs)
        (params, moments), _ = jax.lax.scan(epoch, (state.params, state.optimiser), keys)
        return state._replace(params=params, optimiser=moments)

    def train(state: State, keys: Array) -> tuple[State, dict[str, Array]]:
        return jax.lax.scan(iteration, state, keys)

    return init, train


def chosen(logits: Array, action: Array) -> Array:
    """Log-probabilities of the actions taken."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], -1)[..., 0]


def advantages(reward: Array, value: Array, next_value: Array, steps: Step, config: Config) -> Array:
    """Generalised advantage estimates [T, N]. An episode that ran out of time would have gone on, so the state where it
    stopped has a value; one that was terminated is over. Neither has anything to do with the steps that follow."""
    ended = steps.terminated | steps.truncated
    delta = reward + config.gamma * next_value * ~steps.terminated - value

    def back(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, ended = now
        gain = delta + config.gamma * config.gae_lambda * later * ~ended
        return gain, gain

    return jax.lax.scan(back, jnp.zeros_like(delta[0]), (delta, ended), reverse=True)[1]


def main(config: Config) -> None:
    init, train = (jax.jit(jax.vmap(one)) for one in make_train(config))
    state = init(jax.random.split(jax.random.key(0), config.seeds))
    for done in range(0, config.iterations, config.report_every):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(1), done), (config.seeds, config.report_every))
        state, metrics = train(state, keys)  # [S, I]
        steps = (done + config.report_every) * config.num_envs * config.rollout_steps
        solved = ", ".join(f"{rate:.0%}" for rate in metrics["solved"].mean(1))
        print(f"{steps:>9,} steps: episodes that reached the goal, by seed: {solved}", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Config))
