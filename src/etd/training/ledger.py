"""Episode statistics, kept on the device: for learning curves, and for diagnosing runs whose reward stays at zero."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from etd.bonuses import memory
from etd.bonuses.memory import Memory
from etd.core.types import Array, EnvSpec, Metrics, Rollout

WINDOW = 100
"""Episodes averaged in the learning curves, as in the paper."""
SEEN_BITS = 1 << 18


class Ledger(NamedTuple):
    """Sums of the running episodes, the last WINDOW finished ones, and the states ever seen."""

    running: Array
    """[3, N] return, length and distinct states so far of each running episode"""
    visited: Memory
    """fingerprints of the states each running episode has reached"""
    recent: Array
    """[4, WINDOW] return, length, distinct states and success of the last episodes, oldest first; NaN until that many
    have finished"""
    episodes: Array
    """[] int32"""
    seen: Array
    """[SEEN_BITS] bool: each state seen sets one, by its fingerprint"""
    first_success: Array
    """[] int32 environment step at the end of the rollout with the first success, or -1"""
    unlocked: Array
    """[K] int32: how many finished episodes unlocked each achievement"""


def start(num_envs: int, spec: EnvSpec) -> Ledger:
    return Ledger(
        jnp.zeros((3, num_envs)),
        memory.empty(num_envs, spec.max_steps + 1, 1, jnp.uint32),
        jnp.full((4, WINDOW), jnp.nan, jnp.float32),
        jnp.zeros((), jnp.int32),
        jnp.zeros(SEEN_BITS, bool),
        jnp.full((), -1, jnp.int32),
        jnp.zeros(len(spec.achievements), jnp.int32),
    )


def record(ledger: Ledger, spec: EnvSpec, rollout: Rollout, step: Array) -> tuple[Ledger, Metrics]:
    """Add a rollout that ends at environment step ``step``."""
    done = rollout.done
    visited, new = _first_visits(ledger.visited, rollout)
    sums = _episode_sums(ledger.running, rollout, new)
    success = spec.success(rollout.step)
    finished = jnp.concatenate([sums, success[None].astype(jnp.float32)]).reshape(4, -1)
    recent = _append(ledger.recent, finished, done.reshape(-1))
    running = jnp.where(done[-1], 0.0, sums[:, -1])
    seen = ledger.seen.at[rollout.fingerprint.reshape(-1) % SEEN_BITS].set(True)
    first = jnp.where((ledger.first_success < 0) & success.any(), step, ledger.first_success)
    unlocked = ledger.unlocked
    if rollout.step.achieved is not None:
        unlocked += (rollout.step.achieved & done[:, :, None]).sum((0, 1))
    ledger = Ledger(running, visited, recent, ledger.episodes + done.sum(), seen, first, unlocked)
    mean = jnp.nanmean(recent, 1)
    metrics = {
        "return": mean[0],
        "length": mean[1],
        "states_per_episode": mean[2],
        "episodes": ledger.episodes,
        "states": _distinct(seen),
        # For ``spec_check``.
        "shortest_episode": jnp.where(done, sums[1], jnp.inf).min(),
        "longest_episode": sums[1].max(),
    }
    if spec.can_succeed:
        metrics |= {"success": mean[3], "first_success": first}
    if spec.achievements:
        rates = unlocked / jnp.maximum(ledger.episodes, 1)
        metrics["score"] = score(rates)
        metrics |= {f"unlocked_{name}": rate for name, rate in zip(spec.achievements, rates, strict=True)}
    return ledger, metrics


def score(rates: Array) -> Array:
    """Crafter's score of success rates [..., K], in per cent: exp(mean over K of ln(1 + 100 rate)) - 1. Compared with
    the mean, it weights rare achievements more."""
    return jnp.expm1(jnp.log1p(100 * rates).mean(-1))


def _first_visits(visited: Memory, rollout: Rollout) -> tuple[Memory, Array]:
    """[T, N] whether each step reached a state that is new in its episode. An episode's first state has no fingerprint
    here, so returning to it counts as new once."""
    reached = rollout.fingerprint[:, :, None]
    present = jnp.concatenate([jnp.zeros_like(reached[:1]), jnp.where(rollout.done[:-1, :, None], 0, reached[:-1])])

    def unseen(past: Array, new: Array, stored: Array) -> Array:
        return ~((past == new[:, 0]) & stored).any(0)

    return memory.recall(visited, present, reached, rollout.done, unseen)


def _episode_sums(running: Array, rollout: Rollout, new: Array) -> Array:
    """[3, T, N] return, length and distinct states of each step's episode up to and including that step."""
    reward = rollout.step.reward
    terms = jnp.stack([reward, jnp.ones_like(reward), new.astype(reward.dtype)])
    terms = terms.at[:, 0].add(running)
    begins = jnp.concatenate([jnp.zeros_like(rollout.done[:1]), rollout.done[:-1]])
    begins = jnp.broadcast_to(begins, terms.shape)

    def join(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        # A sum that restarts wherever an episode begins.
        return left[0] | right[0], jnp.where(right[0], right[1], left[1] + right[1])

    return jax.lax.associative_scan(join, (begins, terms), axis=1)[1]


def _append(recent: Array, values: Array, chosen: Array) -> Array:
    """The last WINDOW of ``recent`` followed by the chosen columns of ``values`` [4, T*N]."""
    columns = jnp.concatenate([recent, values], 1)
    valid = jnp.concatenate([~jnp.isnan(recent[0]), chosen])
    from_end = jnp.cumsum(valid[::-1])[::-1]
    slot = jnp.where(valid & (from_end <= WINDOW), WINDOW - from_end, WINDOW)
    return jnp.full_like(recent, jnp.nan).at[:, slot].set(columns, mode="drop")


def _distinct(seen: Array) -> Array:
    """Estimated number of distinct fingerprints, by linear counting; within 1 % up to twice SEEN_BITS."""
    empty = jnp.maximum((~seen).sum(), 1)
    return SEEN_BITS * jnp.log(SEEN_BITS / empty)
