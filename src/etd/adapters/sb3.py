"""The bonus in Stable-Baselines3: PPO, A2C and the other on-policy algorithms, sb3-contrib's RecurrentPPO among them.

    model = PPO("MlpPolicy", envs)
    explorer = etd.Explorer("etd", model.observation_space, model.action_space, model.n_envs, max_steps=500)
    model.learn(100_000, callback=ExplorationCallback(explorer))

    model.save("model"), explorer.save("explorer")
    model, explorer = PPO.load("model", envs), etd.Explorer.load("explorer")       # to resume
    model.learn(100_000, callback=ExplorationCallback(explorer), reset_num_timesteps=False)

No ``reset`` is needed: the callback sees whether the environments have been restarted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np

from etd.adapters.explorer import Explorer
from etd.adapters.spaces import Interface
from etd.core.errors import UserError
from etd.core.limits import is_whole

try:
    from stable_baselines3.common.buffers import RolloutBuffer
    from stable_baselines3.common.callbacks import BaseCallback, EventCallback
    from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
except ImportError as error:
    raise UserError(
        f"etd.adapters.sb3 needs Stable-Baselines3, which cannot be imported here ({error}): pip install 'etd[sb3]'"
    ) from error


class ExplorationCallback(BaseCallback):
    """Adds the bonus to the rewards of every rollout, before the model learns from it.

    The reward becomes ``extrinsic r + intrinsic b'``, as the explorer's mix says, and advantages and returns are those
    of this reward. What SB3 adds to the last reward of an episode that ran out of time, the discounted value of where
    it stopped, is a value, not a reward: it stays as it is. So does the environment's reward in the episode statistics.

    The explorer sees what the policy sees, after all wrappers: images with channels first, stacked frames,
    observations normalised by VecNormalize, which drift while its moments do (Count never sees one twice). Actions are
    those that the environment got, after clipping. Of Dict observations it sees the part that it was made for, "image"
    or the one named ``part``.

    ``save_freq``, ``save_path`` and ``name_prefix`` mean what they mean to SB3's CheckpointCallback: with the same
    three, the explorer is saved beside every checkpoint, in the folder ``PREFIX_explorer_N_steps``.
    """

    def __init__(
        self,
        explorer: Explorer,
        part: str = "",
        *,
        save_freq: int = 0,
        save_path: str | Path = "",
        name_prefix: str = "rl_model",
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        if not isinstance(explorer, Explorer):
            raise UserError(f"The callback was given a {type(explorer).__name__}; it needs an etd.Explorer.")
        if not is_whole(save_freq, 0):
            raise UserError(f"save_freq is {save_freq!r}; it should be a number of calls, or 0 to save nothing.")
        if save_freq and not save_path:
            raise UserError("save_freq says when to save the explorer, but save_path does not say where.")
        self.explorer, self.part = explorer, part
        self.save_freq, self.save_path, self.name_prefix = save_freq, save_path, name_prefix
        self._steps: list[tuple[np.ndarray, ...]] = []
        """of this rollout, each of [N, ...]"""

    def _init_callback(self) -> None:
        if isinstance(self.parent, EventCallback):
            raise UserError(
                f"Inside {type(self.parent).__name__} the callback would see only some of the steps. Pass it to "
                "learn() itself, in a list with the other one."
            )

    def _on_training_start(self) -> None:
        model, explorer = self.model, self.explorer
        if not isinstance(model, OnPolicyAlgorithm):
            raise UserError(
                f"{type(model).__name__} learns from a replay buffer, where a bonus would go stale; use PPO, A2C or "
                "another on-policy algorithm."
            )
        buffer = model.rollout_buffer
        if type(buffer).compute_returns_and_advantage is not RolloutBuffer.compute_returns_and_advantage:
            raise UserError(f"{type(buffer).__name__} computes advantages in its own way; use one of SB3's buffers.")
        seen = self._observed_space(model.observation_space)
        if explorer.num_envs != model.n_envs or Interface.of(seen, model.action_space) != explorer.interface:
            space = f"model.observation_space[{self.part!r}]" if self.part else "model.observation_space"
            raise UserError(
                f"The explorer was made for other environments. Make it with etd.Explorer(..., {space}, "
                f"model.action_space, model.n_envs), where model.n_envs is {model.n_envs}."
            )
        explorer.check_steps(buffer.buffer_size)
        # The environments have been reset, or have been stepped without us.
        if not explorer.follows(self._given(self._observed(model._last_obs))):
            explorer.reset()

    def _on_rollout_start(self) -> None:
        self._steps = []  # SB3 drops a rollout that a callback stops

    def _on_step(self) -> bool:
        # SB3 calls this after the environment's step, but before it moves on to the new observations and adds values to
        # the rewards of time-outs, in place. Hence the copies.
        at = self.locals
        done, infos = np.array(at["dones"], bool), at["infos"]
        after = np.array(self._observed(at["new_obs"]))
        for env in np.flatnonzero(done):  # new_obs holds the next episode's first observation there
            last = infos[env].get("terminal_observation")
            if last is None:
                raise UserError(
                    "The vector environment does not say where an episode ended; SB3's own put it in "
                    "infos[i]['terminal_observation']."
                )
            after[env] = self._observed(last)
        late = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos]) & done
        obs, action = self._observed(self.model._last_obs), at.get("clipped_actions", at["actions"])
        columns = (obs, action, after, done & ~late, late, at["rewards"])
        self._steps.append(tuple(np.array(column) for column in columns))
        if self.save_freq and self.n_calls % self.save_freq == 0:
            self.explorer.save(Path(self.save_path) / f"{self.name_prefix}_explorer_{self.num_timesteps}_steps")
        return True

    def _on_rollout_end(self) -> None:
        explorer, model = self.explorer, cast("OnPolicyAlgorithm", self.model)
        buffer, columns = model.rollout_buffer, zip(*self._steps, strict=True)
        obs, action, after, terminated, truncated, paid = map(np.stack, columns)
        bonus = explorer.reward(self._given(obs), action, self._given(after), terminated, truncated)
        added = bonus + (explorer.mix.extrinsic - 1) * paid.astype(np.float32)
        buffer.rewards += added
        # Advantages are linear in the rewards. SB3 has computed those of its own; these are the ones of what was added.
        buffer.advantages += _discounted(added, terminated | truncated, buffer.gamma * buffer.gae_lambda)
        buffer.returns = buffer.advantages + buffer.values
        for name, value in {**explorer.update(), "reward_mean": float(bonus.mean())}.items():
            self.logger.record(f"exploration/{name}", value)

    def _observed_space(self, space: Any) -> Any:
        """The space of what the explorer sees."""
        spaces = getattr(space, "spaces", None)
        if self.part:
            if not isinstance(spaces, dict) or self.part not in spaces:
                raise UserError(f"part is {self.part!r}, but the model's observations, {space}, have no such part.")
            return spaces[self.part]
        if isinstance(spaces, dict) and not self.explorer.interface.part:
            raise UserError(
                f"The model's observations are a Dict of {', '.join(spaces)}; say which the explorer was made for: "
                "ExplorationCallback(explorer, part=...)."
            )
        return space

    def _observed(self, obs: Any) -> Any:
        """What the explorer sees of observations, one or [N, ...]."""
        part = self.part or self.explorer.interface.part
        return obs[part] if part else obs

    def _given(self, observed: np.ndarray) -> Any:
        """It in the form that the explorer takes."""
        part = self.explorer.interface.part
        return {part: observed} if part else observed


def _discounted(added: np.ndarray, done: np.ndarray, discount: float) -> np.ndarray:
    """Sums of the rest of the episode, of numbers and ends [T, N]: [T, N]."""
    result, after = np.empty_like(added), np.zeros_like(added[0])
    for step in reversed(range(len(added))):
        result[step] = after = added[step] + discount * after * ~done[step]
    return result
