"""The bonus for any training loop: NumPy in, NumPy out, no trainer of ours.

    explorer = etd.Explorer("etd", envs.single_observation_space, envs.single_action_space, num_envs, max_steps=640)
    reward = explorer.reward(obs, action, next_obs, terminated, truncated, extrinsic)      # a step or a whole rollout
    metrics = explorer.update()                                                            # once per rollout

With the same seed and the same steps, this is what our own trainer computes: same first weights, same order of scoring,
standardising and learning, same random numbers.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from etd import bonuses
from etd.adapters.spaces import Interface, rows
from etd.bonuses import ETD, Bonus, BonusState, LearnedBonus, Mixture
from etd.core import files, plugins
from etd.core.errors import UserError
from etd.core.keys import named
from etd.core.moments import Moments
from etd.core.types import Array, Key, Metrics, PyTree, Rollout
from etd.training import checkpoint, memory
from etd.training.checkpoint import DamagedError, MismatchError
from etd.training.compiled import Program
from etd.training.config import assign, bonus_name, from_dict, to_dict, unavailable
from etd.training.experiment import Experiment
from etd.training.inside import Insight
from etd.training.reward import Mix
from etd.training.validate import check_minibatch, checked, parts

FORMAT = 2
LARGEST = 1_000_000
"""Bytes of a record, and steps without an update after which the user is reminded."""


_rollout = jax.jit(Rollout.of)


class _State(NamedTuple):
    """What a file keeps."""

    bonus: BonusState
    moments: Moments
    """of the bonus, up to the last update"""
    updates: Array
    """[] int32"""
    lengths: Array
    """[N] int32: steps of the running episodes"""
    led: Array
    """[N, ...] where the last step led"""
    goes_on: Array
    """[N] bool: whether the episode goes on from there"""


class _Piece(NamedTuple):
    """What one call of ``reward`` saw."""

    rollout: Rollout
    trace: PyTree
    bonus: Array
    """[T, N]"""
    real: np.ndarray
    """[T, N]"""


class _Tally(NamedTuple):
    """Mean and spread of the bonuses since the last update."""

    samples: int = 0
    mean: float = 0.0
    spread: float = 0.0
    """sum of squared deviations from the mean"""

    def add(self, x: np.ndarray) -> _Tally:
        if not x.size:
            return self
        x = x.astype(np.float64)
        samples, apart = self.samples + x.size, float(x.mean()) - self.mean
        spread = self.spread + float(np.square(x - x.mean()).sum()) + apart**2 * self.samples * x.size / samples
        return _Tally(samples, self.mean + apart * x.size / samples, spread)

    def enter(self, moments: Moments, momentum: float) -> Moments:
        """``Moments.update`` with everything that was added."""
        if not self.samples:
            return moments
        mean = momentum * float(moments.mean) + (1 - momentum) * self.mean
        around = self.spread / self.samples + (self.mean - mean) ** 2
        return Moments(jnp.float32(mean), jnp.float32(momentum * float(moments.var) + (1 - momentum) * around))


class Explorer:
    """An exploration bonus for a training loop of your own.

    ``bonus`` is a name, an expression such as "etd + 0.5*count", a Bonus or its class; ``fields`` are its fields, and
    ``mix`` says how it is standardised, scaled and added. ``max_steps`` is the length of the longest episode, which
    sizes the episodic memory. RND, NovelD and NGU, which read the policy's embedding in the paper, have networks of
    their own here (``source="own"``); AGAC needs the policy's logits and is refused.

    >>> import etd, gymnasium, numpy as np
    >>> spaces = gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Discrete(2)
    >>> explorer = etd.Explorer("etd", *spaces, num_envs=4, max_steps=100, epochs=1, minibatch=32)
    >>> obs, end = np.zeros((17, 4, 3), np.float32), np.zeros((16, 4), bool)
    >>> explorer.reward(obs[:-1], np.zeros((16, 4), int), obs[1:], terminated=end, truncated=end).shape
    (16, 4)
    >>> sorted(explorer.update())[:2]
    ['bonus_max', 'bonus_mean']
    """

    def __init__(
        self,
        bonus: str | Bonus | type[Bonus],
        observation_space: Any,
        action_space: Any,
        num_envs: int,
        *,
        max_steps: int,
        seed: int = 0,
        mix: Mix | None = None,
        **fields: Any,
    ) -> None:
        interface = Interface.of(observation_space, action_space)
        if interface.part:
            warnings.warn(f"The bonus sees the part {interface.part!r} of the observations, no other.", stacklevel=2)
        if interface.obs_dtype == "uint8" and len(interface.obs_shape) > 1 and not interface.is_image:
            warnings.warn(
                f"Observations {list(interface.obs_shape)} are read as a vector of numbers as they are, up to "
                f"{interface.obs_high:g}; an image has three axes.",
                stacklevel=2,
            )
        if fields.get("source") == "policy":
            raise UserError("source='policy' needs the policy's features, which an Explorer never sees; leave it out.")
        self._begin(_own(_made(bonus, fields)), Mix() if mix is None else mix, interface, num_envs, max_steps, seed)
        self._state: _State = self._first()

    def _begin(self, bonus: Bonus, mix: Mix, interface: Interface, num_envs: int, max_steps: int, seed: int) -> None:
        self.num_envs, self.max_steps = (_whole(*one, 1) for one in (("num_envs", num_envs), ("max_steps", max_steps)))
        self.seed = _whole("seed", seed, 0)
        if not isinstance(mix, Mix):
            raise UserError(f"mix is {mix!r}; it should be an etd.Mix, such as etd.Mix(intrinsic=0.01).")
        self.bonus, self.mix, self.interface = bonus, mix, interface = checked(bonus), checked(mix), interface
        self.spec = interface.spec(self.max_steps)
        if why := bonus.refusal(self.spec):
            raise UserError(why)
        self.metrics: dict[str, float] = {}
        """of the last ``reward`` and ``update``"""
        self.last_bonus = np.zeros((0, self.num_envs), np.float32)
        """[T, N] of the last ``reward``, before standardising and scaling"""
        self._key = jax.random.key(self.seed)
        alike = Experiment(bonus=self.bonus, mix=self.mix)
        compiled = partial(Program, alike)  # in float32, as our trainer's
        self._score, self._mix, self._improve = compiled(bonus.score), compiled(mix), compiled(bonus.improve)
        self._init, self._insight = compiled(lambda key: bonus.init(key, self.spec, self.num_envs)), Insight(alike)
        self._pieces: list[_Piece] = []
        self._tally, self._moments = _Tally(), self.mix.init()
        self._said: set[str] = set()
        need = memory.size(self._shapes())
        memory.refuse_arrays(
            f"An explorer with max_steps = {max_steps}", 1, need, "Pass a smaller one, or fewer environments."
        )

    def _first(self) -> _State:
        """The state before any step."""
        return self._beside(self._init(named(self._key, "bonus")))

    def _beside(self, bonus: BonusState) -> _State:
        """That of its bonus, and what is kept beside it."""
        n, spec = self.num_envs, self.spec
        led, nothing = jnp.zeros((n, *spec.obs_shape), spec.obs_dtype), jnp.zeros(n, jnp.int32)
        return _State(bonus, self.mix.init(), jnp.zeros((), jnp.int32), nothing, led, jnp.zeros(n, bool))

    def _shapes(self) -> _State:
        """Shapes and types of a state, without computing anything."""
        try:
            return jax.eval_shape(self._beside, self._init.shapes(named(self._key, "bonus")))
        except (TypeError, ValueError, OverflowError, MemoryError):
            if max(self.max_steps, self.num_envs) < memory.HUGE:
                raise
            raise UserError(
                f"{self.num_envs} environments with max_steps = {self.max_steps} are too many for any memory."
            ) from None

    # Rewarding ---------------------------------------------------------------------------------------------------

    def reward(
        self,
        obs: Any,
        action: Any,
        next_obs: Any,
        terminated: Any,
        truncated: Any,
        extrinsic: Any = None,
        *,
        mask: Any = None,
    ) -> np.ndarray:
        """The standardised, scaled bonus of each step or, given the environment's reward, the sum of both.

        Arrays are of one step [N, ...] or of a rollout [T, N, ...], which is much faster; so is the result.
        ``next_obs`` is what the action led to: where an episode ends its last observation, not the next one's first.
        ``mask`` is False for steps between two episodes that did not happen, such as the reset steps of Gymnasium's
        vector environments; they get no bonus, and the model learns from a real step in their place. The bonus is
        standardised by moments that include all steps since the last ``update``.
        """
        read, n = self.interface, self.num_envs
        seen, after = read.observations(obs, "obs", n), read.observations(next_obs, "next_obs", n)
        moves = read.moves(action, n)
        end, late = rows(terminated, "terminated", n, bool), rows(truncated, "truncated", n, bool)
        done = end | late if end.shape == late.shape else end
        paid = np.zeros(end.shape, np.float32) if extrinsic is None else rows(extrinsic, "extrinsic", n, float)
        real = np.ones(end.shape, bool) if mask is None else rows(mask, "mask", n, bool)
        if len(sizes := {len(one) for one in (seen, moves, after, end, late, paid, real)}) > 1:
            raise UserError(f"The arrays have {' and '.join(map(str, sorted(sizes)))} steps; all should have as many.")
        self._refuse_gap(seen, after, done, real)
        over, lengths = self._ends(done, real)
        # A step that did not happen is an episode of its own, which stays where it is.
        seen = np.where(real.reshape(*real.shape, *[1] * (seen.ndim - 2)), seen, after)
        end = end & real
        rollout = _rollout(seen, moves, after, paid, end, (over | ~real) & ~end)
        state, scored = self._score(self._state.bonus, rollout, self._score_key())
        raw = np.asarray(scored.bonus)
        if not np.isfinite(raw).all():
            raise UserError(
                "The bonus is not finite: the model has diverged. Load a saved explorer, or begin a new one with a "
                "lower learning_rate."
            )
        tally = self._tally.add(raw[real])
        if not self._pieces and real.all():  # to the last bit as our own trainer does it
            moments, reward = self._mix(self._state.moments, jnp.asarray(paid), scored.bonus)
        else:
            moments = tally.enter(self._state.moments, self.mix.momentum)
            scaled = moments.standardise(scored.bonus) if self.mix.standardise else scored.bonus
            reward = self.mix.extrinsic * paid + self.mix.intrinsic * jnp.where(real, scaled, 0)
        # All has succeeded; only now does anything change.
        # Copies of what is the caller's, who may use the arrays again for the next step.
        kept = (jnp.array(one) for one in (lengths, after[-1], ~done[-1] & real[-1]))
        self._state = _State(state, self._state.moments, self._state.updates, *kept)
        self._pieces.append(_Piece(rollout, scored.trace, scored.bonus, real))
        self._tally, self._moments = tally, moments
        self.last_bonus = np.where(real, raw, 0)
        self.metrics |= _numbers({**_summary(raw[real]), **scored.metrics})
        if (steps := sum(piece.real.size for piece in self._pieces)) > LARGEST:
            self._say("many", f"{steps:,} steps wait for update(), in memory. Call it after every rollout.")
        result = np.array(reward)  # a copy: JAX's own arrays cannot be written to
        return result if np.ndim(terminated) > 1 else result[0]

    def reset(self) -> None:
        """Forget the running episodes, because all environments have been restarted."""
        fresh, state = self._first(), self._state
        bonus = state.bonus._replace(memory=fresh.bonus.memory)
        self._state = state._replace(bonus=bonus, lengths=fresh.lengths, led=fresh.led, goes_on=fresh.goes_on)
        if self._pieces:  # the episodes in what has not been learned from end there
            last = self._pieces[-1]
            step = last.rollout.step
            cut = step.truncated.at[-1].set(~step.terminated[-1])
            self._pieces[-1] = last._replace(rollout=last.rollout._replace(step=step._replace(truncated=cut)))

    def follows(self, obs: Any) -> bool:
        """Whether observations [N, ...] can be what the last ``reward`` led to. If not, ``reset`` before the next."""
        seen = self.interface.observations(obs, "obs", self.num_envs)[0]
        return bool((np.asarray(self._state.led) == seen)[np.asarray(self._state.goes_on)].all())

    def _refuse_gap(self, seen: np.ndarray, after: np.ndarray, done: np.ndarray, real: np.ndarray) -> None:
        """Refuse steps that do not follow from one another."""
        led = np.concatenate([np.asarray(self._state.led)[None], after[:-1]])
        goes_on = np.concatenate([np.asarray(self._state.goes_on)[None], (~done & real)[:-1]])
        for step, env in np.argwhere(goes_on & ~real):
            raise UserError(
                f"mask says that environment {env} did nothing at step {step}, though its episode did not end before. "
                "Only steps between two episodes can be left out."
            )
        same = (led == seen).all(tuple(range(2, seen.ndim)))
        for step, env in np.argwhere(goes_on & ~same):
            raise UserError(
                f"Environment {env} does not continue where it was: obs at step {step} is not the next_obs before it, "
                "though the episode did not end. Pass every step, in order, and for next_obs what the action led to, "
                "not the first observation after a reset. If you have restarted the environments, call reset()."
            )

    def _ends(self, done: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where episodes end for the bonus [T, N], if not earlier then after ``max_steps``, and the lengths [N] of
        those that go on."""
        length, over = np.array(self._state.lengths), done & real
        for step in range(len(done)):
            length += real[step]
            too_long = real[step] & ~done[step] & (length >= self.max_steps)
            if too_long.any():
                self._say(
                    "long",
                    f"An episode is longer than max_steps = {self.max_steps}; for the bonus it begins anew after every "
                    f"{self.max_steps} steps. Pass the true length of the longest one.",
                )
            over[step] |= too_long
            length[over[step] | ~real[step]] = 0
        return over, length

    def _score_key(self) -> Key:
        key, calls = self._iteration_key(), len(self._pieces)
        return named(key, "score", calls) if calls else named(key, "score")

    def _iteration_key(self) -> Key:
        return named(self._key, "iteration", self._state.updates)

    def _say(self, kind: str, sentence: str) -> None:
        """Warn once of each kind."""
        if kind not in self._said:
            self._said.add(kind)
            warnings.warn(sentence, stacklevel=4)

    # Learning ----------------------------------------------------------------------------------------------------

    def update(self) -> dict[str, float]:
        """Train the model on all steps since the last update, and return the metrics. Call it after the same number of
        steps every time: a new number is compiled anew."""
        if not self._pieces:
            raise UserError("There is nothing to learn from: call reward() before update().")
        if not any(piece.real.any() for piece in self._pieces):
            raise UserError("There is nothing to learn from: the mask says that none of the steps happened.")
        pieces, state = self._pieces, self._state
        self.check_steps(sum(len(piece.real) for piece in pieces))
        rollout, trace = _joined([piece.rollout for piece in pieces]), _stacked([piece.trace for piece in pieces])
        real = np.concatenate([piece.real for piece in pieces])
        if not real.all():
            rollout, trace = _happened(rollout, trace, real)
        improved, metrics = self._improve(state.bonus, rollout, trace, named(self._iteration_key(), "model"))
        self._state = state._replace(bonus=improved, moments=self._moments, updates=state.updates + 1)
        self._pieces, self._tally = [], _Tally()
        seen = np.concatenate([np.asarray(piece.bonus)[piece.real] for piece in pieces])
        learned = {f"model_{name}": value for name, value in metrics.items()}
        self.metrics |= _numbers({**_summary(seen), "bonus_scale": jnp.sqrt(self._moments.var), **learned})
        return dict(self.metrics)

    def check_steps(self, steps: int) -> None:
        """Raise a UserError if ``update`` cannot learn from that many steps of every environment."""
        for where, part in parts(self.bonus):
            if isinstance(part, LearnedBonus):
                check_minibatch(f"{where}minibatch", part.minibatch, self.num_envs, steps)

    # Looking inside ----------------------------------------------------------------------------------------------

    def embed(self, obs: Any) -> np.ndarray:
        """The model's embedding of observations [B, ...]: [B, D]. ETD's is the one in which it measures distances."""
        return self._insight.embed(self._state.bonus.learner, self.interface.batch(obs, "obs"))

    def distance(self, x: Any, y: Any) -> np.ndarray:
        """How far ETD thinks it is from each observation of x [A, ...] to each of y [B, ...]: [A, B]."""
        return self._insight.distance(self.embed, x, y)

    # Files -------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write everything to a folder, from which ``load`` continues to the last bit."""
        if self._pieces:
            raise UserError("Some steps have been rewarded but not learned from: call update() before save().")
        record = {
            "format": FORMAT,
            "bonus": to_dict(self.bonus),
            "mix": to_dict(self.mix),
            "interface": asdict(self.interface),
            "num_envs": self.num_envs,
            "max_steps": self.max_steps,
            "seed": self.seed,
        }
        folder = files.path_of(folder)
        checkpoint.write(folder / "state.npz", self._state)
        files.write(folder / "explorer.json", json.dumps(record, indent=2) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The explorer that ``save`` wrote, in the midst of its episodes: call ``reset`` if the environments have been
        restarted since."""
        folder = files.path_of(folder)
        file = folder / "explorer.json"
        try:
            record = json.loads(files.read(file, LARGEST).decode())
            bonus, mix = from_dict(record["bonus"], Bonus), from_dict(record["mix"], Mix)
            numbers = [record[name] for name in ("num_envs", "max_steps", "seed")]
            interface = Interface(**{name: _tupled(value) for name, value in record["interface"].items()})
            known = type(record["format"]) is int and record["format"] == FORMAT
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{folder} holds no explorer: {file.name} cannot be used ({files.reason(error)})."
            ) from error
        if not known:
            raise UserError(f"{folder} was written by another version of etd. Load it with that one.")
        for one in unavailable(bonus):
            raise UserError(one.why)
        explorer = cls.__new__(cls)
        explorer._begin(bonus, mix, interface.checked(), *numbers)
        try:
            explorer._state = checkpoint.read(folder / "state.npz", explorer._shapes())
        except (OSError, DamagedError, MismatchError) as error:
            raise UserError(f"{folder / 'state.npz'} cannot be used: {files.reason(error)}.") from error
        explorer._moments = explorer._state.moments
        return explorer


def _whole(name: str, value: Any, least: int) -> int:
    """``value``, which should be a whole number that fits 31 bits."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value < 2**31:
        raise UserError(f"{name} is {value!r}; it should be a whole number from {least} to {2**31 - 1}.")
    return int(value)


def _made(bonus: str | Bonus | type[Bonus], values: dict[str, Any]) -> Bonus:
    """The bonus with its fields set."""
    made = bonuses.make(bonus) if isinstance(bonus, str) else plugins.instance(Bonus, bonuses.BONUSES, bonus)
    whole = Experiment(bonus=made)
    for name, value in values.items():
        whole = assign(whole, f"bonus.{name}", value)
    return whole.bonus


def _own(bonus: Bonus) -> Bonus:
    """The bonus with networks of its own in place of the policy's."""
    if isinstance(bonus, Mixture):
        terms = [replace(term, factors=tuple(_own(factor) for factor in term.factors)) for term in bonus.terms]
        return replace(bonus, terms=tuple(terms))
    if hasattr(bonus, "source"):
        bonus = replace(bonus, source="own")  # type: ignore[call-arg]
    if bonus.needs:
        raise UserError(
            f"The bonus {bonus_name(bonus)} needs the policy's {' and '.join(sorted(bonus.needs))}, which only our own "
            "trainer gives it. Choose another."
        )
    if isinstance(bonus, ETD) and bonus.ending == "next":
        raise UserError("ending='next' needs the first observation of the next episode, which an Explorer never sees.")
    return bonus


def _happened(rollout: Rollout, trace: PyTree, real: np.ndarray) -> tuple[Rollout, PyTree]:
    """The rollout with a step that happened in place of each that did not: the environment's last, else its next, else
    any. It stays an episode of its own."""
    steps, num_envs = real.shape
    times, envs = (np.broadcast_to(one, real.shape) for one in (np.arange(steps)[:, None], np.arange(num_envs)))
    last = np.maximum.accumulate(np.where(real, times, -1))
    after = np.minimum.accumulate(np.where(real, times, steps)[::-1])[::-1]
    found = np.where(last >= 0, last, after)
    (time, env), none = np.argwhere(real)[0], found == steps
    chosen = np.where(none, time, found), np.where(none, env, envs)
    obs, action, next_obs, trace = jax.tree.map(
        lambda leaf: leaf[chosen], (rollout.obs[:-1], rollout.action, rollout.next_obs, trace)
    )
    step = rollout.step._replace(next_obs=next_obs)
    return rollout._replace(obs=jnp.concatenate([obs, rollout.obs[-1:]]), action=action, step=step), trace


def _joined(pieces: list[Rollout]) -> Rollout:
    """Rollouts that follow one another as one; some fields have a row more than there are steps."""
    if len(pieces) == 1:
        return pieces[0]
    longer = {
        name: jnp.concatenate([*(getattr(one, name)[:-1] for one in pieces[:-1]), getattr(pieces[-1], name)])
        for name in ("obs", "value", "hidden")
    }
    step, action, log_prob = _stacked([(one.step, one.action, one.log_prob) for one in pieces])
    return Rollout(step=step, action=action, log_prob=log_prob, **longer)


def _stacked(trees: list[PyTree]) -> PyTree:
    """Leaves [T, N, ...] one after the other."""
    return trees[0] if len(trees) == 1 else jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *trees)


def _summary(bonus: np.ndarray) -> dict[str, Any]:
    if not bonus.size:
        return {}
    return {"bonus_mean": bonus.mean(), "bonus_std": bonus.std(), "bonus_max": bonus.max()}


def _numbers(metrics: Metrics) -> dict[str, float]:
    return {name: float(value) for name, value in jax.device_get(metrics).items()}


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
