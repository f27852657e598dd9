"""Acting: T steps of N environments under the current policy, in one compiled scan."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from etd.agent.policy import ActorCritic, Output
from etd.agent.ppo import PPO
from etd.core.keys import named
from etd.core.packing import Packed, pack, unpack
from etd.core.types import Array, Box, Discrete, Key, Rollout, Transition
from etd.envs import autoreset
from etd.envs.autoreset import Envs, StartPool
from etd.envs.base import DeviceEnv
from etd.nets.heads import action_noise
from etd.nets.model import Learner

Action = TypeVar("Action", Array, np.ndarray)


def to_env(action: Action, space: Discrete | Box) -> Action:
    """The action clipped to the box, for the environment only; the rollout keeps what the policy sampled."""
    return action.clip(space.low, space.high) if isinstance(space, Box) else action


def act(
    net: ActorCritic, obs: Array, hidden: Array, noise: Array, keep: frozenset[str]
) -> tuple[dict[str, Any], Array]:
    """One step's rows of a Rollout [N, ...], without the transition, and the recurrent states after it."""
    out: Output = net(obs, hidden)
    action = out.policy.sample(noise)
    row: dict[str, Any] = {
        "obs": obs,
        "action": action,
        "log_prob": out.policy.log_prob(action),
        "value": out.value,
        "hidden": hidden,
        "features": out.features,
        "logits": out.policy.logits,
    }
    dropped = {"features", "logits"} - keep
    return {name: value for name, value in row.items() if name not in dropped}, out.hidden


def collect(
    env: DeviceEnv,
    learner: Learner,
    envs: Envs,
    hidden: Array,
    pool: StartPool,
    steps: int,
    key: Key,
    keep: frozenset[str],
    greedy: bool = False,
) -> tuple[Envs, Array, Rollout]:
    """The environments and recurrent states [N, H] after the rollout, and the Rollout. ``keep`` names its optional
    fields.

    ``greedy`` sets the noise to zero, so the policy's sample is its most likely action.
    """
    net: ActorCritic = learner.net()
    space = env.spec.action
    noise = action_noise(named(key, "action"), space, (steps, hidden.shape[0]))
    noise = jnp.zeros_like(noise) if greedy else noise

    def advance(carry: Packed, now: tuple[Array, Key]) -> tuple[Packed, Packed]:
        (envs, hidden), (noise, step_key) = unpack(carry), now
        row, after_hidden = act(net, envs.now.obs, hidden, noise, keep)
        after, transition = autoreset.step(env, pool, envs, to_env(row["action"], space), step_key)
        return pack((after, forget(after_hidden, transition))), pack({**row, "step": transition})

    carried, stacked = jax.lax.scan(advance, pack((envs, hidden)), (noise, step_keys(key, steps)))
    (envs, hidden), rows = unpack(carried), unpack(stacked)
    last = net(envs.now.obs, hidden)
    ends = {"obs": envs.now.obs, "value": last.value, "hidden": hidden, "features": last.features}
    for name in sorted(ends.keys() & rows.keys()):  # sorted, so every process compiles the same program
        rows[name] = jnp.concatenate([rows[name], ends[name][None]])
    return envs, hidden, Rollout(**rows)


def step_keys(key: Key, steps: int) -> Key:
    """[T] the key of ``autoreset.step`` at each step when ``collect`` is given ``key``."""
    return jax.random.split(named(key, "env"), steps)


def forget(hidden: Array, transition: Transition) -> Array:
    """A new episode starts from a zero recurrent state."""
    return jnp.where(transition.done[:, None], 0.0, hidden)


def first_hidden(ppo: PPO, num_envs: int) -> Array:
    """[N, H] recurrent states before an episode's first observation."""
    return jnp.zeros((num_envs, ppo.cell.width(ppo.features)))
