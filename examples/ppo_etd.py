"""PPO with ETD's bonus in one file: PyTorch, and Gymnasium's vector environments in each of their autoreset modes.

    pip install 'etd[minigrid]' torch
    python ppo_etd.py                                                # MiniGrid-DoorKey-8x8
    python ppo_etd.py --env CartPole-v1 --max-steps 500 --autoreset same_step

The bonus is an Explorer and two lines per rollout, marked "etd"; everything else is PPO. What is easily done wrong is
explained where it is done.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

# JAX, in which the bonus is computed, would otherwise take most of the GPU's memory and leave PyTorch little.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import gymnasium as gym
import numpy as np
import torch
import tyro
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical

import etd


@dataclass
class Args:
    """What can be set on the command line."""

    env: str = "MiniGrid-DoorKey-8x8-v0"
    max_steps: int = 640
    """steps of the longest episode"""
    autoreset: Literal["next_step", "same_step", "disabled"] = "next_step"
    """how the environments go on after an end"""
    bonus: str = "etd"
    """or rnd, icm, noveld, count, none, ..."""
    intrinsic: float = 0.01
    """weight of the bonus"""
    seed: int = 1
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    total_steps: int = 1_000_000
    num_envs: int = 16
    rollout_steps: int = 128
    """num_envs times this has to be a multiple of the bonus's minibatch, 512"""
    epochs: int = 4
    minibatch: int = 256
    learning_rate: float = 3e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_coef: float = 0.01
    value_coef: float = 0.5
    max_grad_norm: float = 0.5


class Agent(nn.Module):
    """Small convolutions for MiniGrid's 7 x 7 cells, dense layers for vectors."""

    def __init__(self, envs: VectorEnv) -> None:
        super().__init__()
        assert isinstance(envs.single_action_space, gym.spaces.Discrete), "this file is for discrete actions"
        shape, actions = envs.single_observation_space.shape, envs.single_action_space.n
        layers: list[nn.Module] = [nn.Flatten(), nn.Linear(int(np.prod(shape)), 64), nn.Tanh()]
        if len(shape) == 3:
            convolutions = [(shape[2], 32), (32, 64), (64, 64)]
            layers = [layer for a, b in convolutions for layer in (nn.Conv2d(a, b, 2), nn.GroupNorm(1, b), nn.ReLU())]
            layers += [nn.Flatten(), nn.Linear(64 * (shape[0] - 3) * (shape[1] - 3), 64), nn.Tanh()]
        self.image, self.body = len(shape) == 3, nn.Sequential(*layers)
        self.actor, self.critic = nn.Linear(64, actions), nn.Linear(64, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)

    def forward(self, obs: Tensor) -> tuple[Categorical, Tensor]:
        x = obs.float().movedim(-1, 1) / 10 if self.image else obs.float()  # MiniGrid's codes go up to 10
        x = self.body(x)
        return Categorical(logits=self.actor(x)), self.critic(x).squeeze(-1)


def make_envs(args: Args) -> VectorEnv:
    wrappers = []
    if args.env.startswith("MiniGrid"):
        from minigrid.wrappers import ImgObsWrapper  # also registers the environments

        wrappers = [ImgObsWrapper]
    mode = {"autoreset_mode": AutoresetMode[args.autoreset.upper()]}
    return gym.make_vec(args.env, args.num_envs, vectorization_mode="sync", wrappers=wrappers, vector_kwargs=mode)


class Stepper:
    """Steps the environments and says what happened, in whichever way they reset themselves."""

    def __init__(self, envs: VectorEnv, seed: int) -> None:
        self.envs, self.mode = envs, envs.metadata["autoreset_mode"]
        self.obs, _ = envs.reset(seed=seed)
        self.ended = np.zeros(envs.num_envs, bool)

    def step(self, action: np.ndarray) -> dict[str, np.ndarray]:
        """Obs acted on, action, what it led to, and so on; each of [N, ...]."""
        obs, real = self.obs, np.ones_like(self.ended)
        new_obs, reward, terminated, truncated, infos = self.envs.step(action)
        ended, next_obs = terminated | truncated, new_obs
        if self.mode == AutoresetMode.NEXT_STEP:
            # At an end, new_obs is the episode's last observation, as it should be. The step after it is the trap: the
            # environment ignores the action and resets. That leads from one episode to another, which no action can;
            # neither the bonus nor the policy may learn from it.
            real = ~self.ended
        elif self.mode == AutoresetMode.SAME_STEP:
            # The environment has already reset: at an end, new_obs is the next episode's first observation. The last
            # one is in infos, which has the key only if some environment has ended.
            next_obs = new_obs.copy()
            for env in np.flatnonzero(ended):
                next_obs[env] = infos["final_obs"][env]
        elif ended.any():  # DISABLED
            # new_obs is the episode's last observation, and stepping on would fail. We reset, and only those that have
            # ended: without the mask, all others would lose their episodes.
            new_obs, _ = self.envs.reset(options={"reset_mask": ended})
        self.obs, self.ended = new_obs, ended
        return {
            "obs": obs,
            "action": action,
            "next_obs": next_obs,
            "terminated": terminated,
            "truncated": truncated,
            "extrinsic": reward.astype(np.float32),
            "mask": real,
        }


def train(args: Args) -> Agent:
    torch.manual_seed(args.seed)
    envs = make_envs(args)
    agent = Agent(envs).to(args.device)
    optimiser = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    explorer = etd.Explorer(  # etd
        args.bonus,
        envs.single_observation_space,
        envs.single_action_space,
        args.num_envs,
        max_steps=args.max_steps,
        seed=args.seed,
        mix=etd.Mix(intrinsic=args.intrinsic),
    )
    stepper = Stepper(envs, args.seed)
    running, finished = np.zeros(args.num_envs), []  # returns of episodes
    per_rollout = args.num_envs * args.rollout_steps
    for iteration in range(1, args.total_steps // per_rollout + 1):
        # Play.
        steps = []
        for _ in range(args.rollout_steps):
            with torch.no_grad():
                policy, _ = agent(tensor(stepper.obs, args))
            steps.append(stepper.step(policy.sample().cpu().numpy()))
            ended = steps[-1]["terminated"] | steps[-1]["truncated"]
            running += steps[-1]["extrinsic"]
            finished += running[ended].tolist()
            running[ended] = 0
        rollout = {name: np.stack([step[name] for step in steps]) for name in steps[0]}  # [T, N, ...]

        # The bonus belongs to the reward, so it comes before the advantages, not on top of them: only thus do the steps
        # that lead to something new get their share.
        reward = explorer.reward(**rollout)  # etd
        metrics = explorer.update()  # etd
        rollout |= {"reward": reward}
        learn(agent, optimiser, {name: tensor(value, args) for name, value in rollout.items()}, args)
        done, finished = iteration * per_rollout, finished[-100:]
        print(f"{done:>9,} steps   return {np.mean(finished or np.nan):6.2f}   bonus {metrics['bonus_mean']:.3f}")
    envs.close()
    return agent


def tensor(array: np.ndarray, args: Args) -> Tensor:
    return torch.as_tensor(array, device=args.device)


def learn(agent: Agent, optimiser: torch.optim.Optimizer, rollout: dict[str, Tensor], args: Args) -> None:
    """PPO's epochs over a rollout [T, N, ...]."""
    obs, action, real = (rollout[name].flatten(0, 1) for name in ("obs", "action", "mask"))
    with torch.no_grad():
        policy, value = agent(obs)
        log_prob = policy.log_prob(action)
        next_value = agent(rollout["next_obs"].flatten(0, 1))[1]
    advantage = advantages(rollout, value, next_value, args).flatten()
    target = advantage + value
    rows = real.nonzero().squeeze(-1)  # not the steps that did not happen
    for _ in range(args.epochs):
        for batch in rows[torch.randperm(len(rows), device=rows.device)].split(args.minibatch):
            policy, now = agent(obs[batch])
            ratio = (policy.log_prob(action[batch]) - log_prob[batch]).exp()
            gain = advantage[batch]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8) if len(gain) > 1 else gain
            clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
            policy_loss = -torch.minimum(ratio * gain, clipped * gain).mean()
            value_loss = (now - target[batch]).square().mean()
            loss = policy_loss + args.value_coef * value_loss - args.entropy_coef * policy.entropy().mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimiser.step()


def advantages(rollout: dict[str, Tensor], value: Tensor, next_value: Tensor, args: Args) -> Tensor:
    """Generalised advantage estimates [T, N]. An episode that ran out of time would have gone on, so the state where it
    stopped has a value; one that was terminated is over. Neither has anything to do with the steps that follow."""
    reward, terminated = rollout["reward"], rollout["terminated"]
    ended = terminated | rollout["truncated"]
    delta = reward + args.gamma * next_value.view_as(reward) * ~terminated - value.view_as(reward)
    result, later = torch.zeros_like(reward), torch.zeros_like(reward[0])
    for time in reversed(range(len(reward))):
        result[time] = later = delta[time] + args.gamma * args.gae_lambda * later * ~ended[time]
    return result


if __name__ == "__main__":
    train(tyro.cli(Args))
