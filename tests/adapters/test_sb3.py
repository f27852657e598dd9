"""The bonus in Stable-Baselines3: true successors, true ends, and advantages of the whole reward."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

import etd

sb3 = pytest.importorskip("stable_baselines3")
contrib = pytest.importorskip("sb3_contrib")

import torch  # noqa: E402
from stable_baselines3.common.callbacks import (  # noqa: E402
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    EveryNTimesteps,
)
from stable_baselines3.common.vec_env import (  # noqa: E402
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecNormalize,
)

from etd.adapters.sb3 import ExplorationCallback  # noqa: E402

pytestmark = pytest.mark.suites

STEPS, ENVS, LIMIT, GOAL = 32, 2, 7, 2.0
MIX = etd.Mix(extrinsic=0.5, intrinsic=0.3)


class Walk(gymnasium.Env):
    """A line: the episode ends at the goal, and after LIMIT steps."""

    def __init__(self, start: int, kind: str = "vector", acts: str = "discrete") -> None:
        image, vector = spaces.Box(0, 255, (36, 37, 3), np.uint8), spaces.Box(-10, 10, (2,))
        both = spaces.Dict({"image": image, "place": vector})
        self.start, self.kind = start, kind
        self.observation_space = {"vector": vector, "image": image, "dict": both}[kind]
        self.action_space = spaces.Discrete(2) if acts == "discrete" else spaces.Box(-0.5, 0.5, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        self.place, self.time = 0.5 * self.start, 0
        return self.look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        push = float(action[0]) if np.ndim(action) else int(action) - 0.5
        assert abs(push) <= 0.5
        self.place, self.time = max(0.0, self.place + push), self.time + 1
        return self.look(), 0.1 * self.place - 0.02, self.place >= GOAL, self.time >= LIMIT, {}

    def look(self) -> Any:
        image = np.zeros((36, 37, 3), np.uint8)
        image[..., 0], image[self.time, :, 1] = int(100 * self.place), 255
        vector = np.array([self.place, self.time], np.float32)
        return {"vector": vector, "image": image, "dict": {"image": image, "place": vector}}[self.kind]


def makers(kind: str = "vector", acts: str = "discrete") -> list[Callable[[], Walk]]:
    return [partial(Walk, start, kind, acts) for start in range(ENVS)]


def explorer_of(model: Any, part: str = "", **more: Any) -> etd.Explorer:
    space = model.observation_space[part] if part else model.observation_space
    fields = {"features": 8, "latent": 8, "minibatch": 32, "epochs": 1, "max_steps": LIMIT, "mix": MIX, **more}
    return etd.Explorer("etd", space, model.action_space, ENVS, **fields)


def make(algorithm: Any = sb3.PPO, envs: VecEnv | None = None, policy: str = "MlpPolicy", **more: Any) -> Any:
    fields = {"n_steps": STEPS, "seed": 3, "device": "cpu", **more}
    if algorithm is not sb3.A2C:
        fields |= {"batch_size": 8, "n_epochs": 1}
    return algorithm(policy, envs or DummyVecEnv(makers()), **fields)


class Look(BaseCallback):
    """Keeps what each rollout was, after the callback under test, before the model learns."""

    def __init__(self) -> None:
        super().__init__()
        self.rollouts: list[dict[str, Any]] = []
        self.states: list[Any] = []
        self.actions: list[np.ndarray] = []

    def _on_step(self) -> bool:
        self.states.append(self.locals.get("lstm_states"))
        self.actions.append(np.array(self.locals["clipped_actions"]))
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer
        kept = {name: np.array(getattr(buffer, name)) for name in ("rewards", "values", "advantages", "returns")}
        kept |= {"actions": np.stack(self.actions), "states": self.states, "logged": dict(self.logger.name_to_value)}
        kept["policy"] = {name: value.clone() for name, value in self.model.policy.state_dict().items()}
        self.rollouts.append(kept)
        self.actions, self.states = [], []


class Replay:
    """The same environments again, without SB3, played by hand."""

    def __init__(self, kind: str, acts: str, see: Callable[[], Callable[[Any, bool], Any]]) -> None:
        self.envs = [make() for make in makers(kind, acts)]
        self.see = [see() for _ in self.envs]
        self.obs = [see(env.reset()[0], True) for see, env in zip(self.see, self.envs, strict=True)]

    def play(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        """[T, N, ...] of every argument of ``reward``."""
        rows: list[list[tuple]] = []
        for moves in actions:
            row = []
            for number, (env, see, move) in enumerate(zip(self.envs, self.see, moves, strict=True)):
                seen, reward, terminated, truncated, _ = env.step(move)
                after = see(seen, False)
                # As SB3 has it: where both are true, the episode was terminated.
                row.append((self.obs[number], move, after, terminated, truncated and not terminated, reward))
                self.obs[number] = see(env.reset()[0], True) if terminated or truncated else after
            rows.append(row)
        names = ("obs", "action", "next_obs", "terminated", "truncated", "extrinsic")
        return {name: np.array([[one[k] for one in row] for row in rows]) for k, name in enumerate(names)}


def as_it_is(pick: Callable[[Any], Any] = lambda obs: obs) -> Callable[[], Callable[[Any, bool], Any]]:
    return lambda: lambda obs, first: pick(obs)


def train(model: Any, explorer: etd.Explorer, rollouts: int = 2, part: str = "", **more: Any) -> list[dict[str, Any]]:
    look = Look()
    callback = CallbackList([ExplorationCallback(explorer, part), look])
    model.learn(rollouts * STEPS * ENVS, callback=callback, **more)
    return look.rollouts


def twin(explorer: etd.Explorer) -> etd.Explorer:
    """The same, untouched."""
    again = etd.Explorer.__new__(etd.Explorer)
    again._begin(explorer.bonus, explorer.mix, explorer.interface, explorer.num_envs, explorer.max_steps, explorer.seed)
    again._state = again._first()
    return again


# The arithmetic --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "policy", "gae_lambda"),
    [(sb3.PPO, "MlpPolicy", 0.9), (sb3.A2C, "MlpPolicy", 1.0), (contrib.RecurrentPPO, "MlpLstmPolicy", 0.95)],
)
def test_the_model_learns_from_both_rewards(algorithm, policy, gae_lambda):
    model = make(algorithm, policy=policy, gamma=0.8, gae_lambda=gae_lambda)
    explorer = explorer_of(model)
    direct, replay = twin(explorer), Replay("vector", "discrete", as_it_is())
    rollouts = train(model, explorer)
    assert len(rollouts) == 2
    for rollout in rollouts:
        steps = replay.play(rollout["actions"])
        assert steps["terminated"].any()
        assert steps["truncated"].any()
        reward = direct.reward(**steps)  # extrinsic and intrinsic, mixed
        metrics = direct.update()
        model.policy.load_state_dict(rollout["policy"])
        advantages = gae(model, steps, reward, replay.obs, rollout["values"], rollout["states"])
        late = steps["truncated"]
        np.testing.assert_allclose(rollout["rewards"][~late], reward[~late], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(rollout["advantages"], advantages, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(rollout["returns"], advantages + rollout["values"], rtol=1e-4, atol=1e-5)
        for name in ("bonus_mean", "model_loss"):
            assert rollout["logged"][f"exploration/{name}"] == pytest.approx(metrics[name], rel=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), explorer._state, direct._state)


def gae(
    model: Any, steps: dict[str, np.ndarray], reward: np.ndarray, now: list, values: np.ndarray, states: list[Any]
) -> np.ndarray:
    """Written from the definition: where an episode goes on, or was only cut short, the next state has a value."""
    done = steps["terminated"] | steps["truncated"]
    after = np.concatenate([values[1:], np.zeros((1, ENVS))])
    for time, env in np.ndindex(done.shape):
        if steps["truncated"][time, env]:
            after[time, env] = value(model, steps["next_obs"][time, env], states[time], env)
        elif not done[time, env] and time == len(done) - 1:
            after[time, env] = value(model, now[env], states[time], env)
        elif done[time, env]:
            after[time, env] = 0
    delta, result = reward + model.gamma * after - values, np.zeros((len(done) + 1, ENVS))
    for time in reversed(range(len(done))):
        result[time] = delta[time] + model.gamma * model.gae_lambda * ~done[time] * result[time + 1]
    return result[:-1]


def value(model: Any, obs: np.ndarray, states: Any, env: int) -> float:
    with torch.no_grad():
        seen = torch.as_tensor(obs)[None]
        if states is None:
            return model.policy.predict_values(seen).item()
        hidden = tuple(one[:, env : env + 1].contiguous() for one in states.vf)
        return model.policy.predict_values(seen, hidden, torch.zeros(1)).item()


# What the explorer sees ------------------------------------------------------------------------------------------


def normalised() -> VecEnv:
    envs = VecNormalize(DummyVecEnv(makers()), training=False, norm_reward=False)
    envs.obs_rms.mean, envs.obs_rms.var = np.array([1.0, 3.0]), np.array([0.5, 4.0])
    return envs


def stacked() -> Callable[[Any, bool], np.ndarray]:
    before = np.zeros(2, np.float32)

    def see(obs: np.ndarray, first: bool) -> np.ndarray:
        nonlocal before
        pair = np.concatenate([np.zeros_like(obs) if first else before, obs])
        before = obs
        return pair

    return see


SEEN: dict[str, tuple] = {
    "image": (lambda: DummyVecEnv(makers("image")), "image", as_it_is(lambda obs: np.moveaxis(obs, -1, 0)), ""),
    "dict": (lambda: DummyVecEnv(makers("dict")), "dict", as_it_is(lambda obs: np.moveaxis(obs["image"], -1, 0)), ""),
    "part": (lambda: DummyVecEnv(makers("dict")), "dict", as_it_is(lambda obs: obs["place"]), "place"),
    "processes": (lambda: SubprocVecEnv(makers(), start_method="spawn"), "vector", as_it_is(), ""),
    "stacked": (lambda: VecFrameStack(DummyVecEnv(makers()), 2), "vector", stacked, ""),
    "normalised": (
        normalised,
        "vector",
        as_it_is(lambda obs: ((obs - np.array([1, 3])) / np.sqrt(np.array([0.5, 4]) + 1e-8)).astype(np.float32)),
        "",
    ),
}


@pytest.mark.filterwarnings("ignore:The bonus sees the part")
@pytest.mark.parametrize("name", SEEN)
def test_the_explorer_sees_what_happened(name):
    build, kind, see, part = SEEN[name]
    model = make(envs=build(), policy="MultiInputPolicy" if kind == "dict" else "MlpPolicy")
    explorer = explorer_of(model, part)
    direct, replay = twin(explorer), Replay(kind, "discrete", see)
    for rollout in train(model, explorer, part=part):
        steps = replay.play(rollout["actions"])
        assert (steps["terminated"] | steps["truncated"]).any()
        if within := direct.interface.part:
            steps |= {one: {within: steps[one]} for one in ("obs", "next_obs")}
        direct.reward(**steps)
        direct.update()
    model.env.close()
    np.testing.assert_allclose(explorer.last_bonus, direct.last_bonus, rtol=1e-4, atol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), explorer._state, direct._state)


def test_actions_are_those_that_the_environment_got():
    model = make(envs=DummyVecEnv(makers(acts="box")))
    explorer = explorer_of(model)
    direct, replay = twin(explorer), Replay("vector", "box", as_it_is())
    kept = []
    score = explorer._score
    explorer._score = lambda state, rollout, key: (kept.append(rollout.action), score(state, rollout, key))[1]
    (rollout,) = train(model, explorer, rollouts=1)
    assert np.abs(rollout["actions"]).max() == 0.5  # clipped
    np.testing.assert_allclose(kept[0], 2 * rollout["actions"], atol=1e-6)  # of [-0.5, 0.5] made [-1, 1]
    direct.reward(**replay.play(rollout["actions"]))
    np.testing.assert_allclose(explorer.last_bonus, direct.last_bonus, rtol=1e-5)


# Going on --------------------------------------------------------------------------------------------------------


def test_learning_in_two_calls_goes_on_with_the_episodes():
    model = make()
    explorer = explorer_of(model)
    direct, replay = twin(explorer), Replay("vector", "discrete", as_it_is())
    rollouts = train(model, explorer, 1) + train(model, explorer, 1, reset_num_timesteps=False)
    for rollout in rollouts:
        direct.reward(**replay.play(rollout["actions"]))
        direct.update()
    np.testing.assert_allclose(explorer.last_bonus, direct.last_bonus, rtol=1e-4, atol=1e-5)
    train(model, explorer, 1)  # SB3 resets the environments, and the episodes begin anew
    assert int(explorer._state.updates) == 3


def test_a_rollout_that_a_callback_stops_is_forgotten():
    model = make()
    explorer = explorer_of(model)
    stop = type("Stop", (BaseCallback,), {"_on_step": lambda self: self.n_calls < 5})()
    callback = ExplorationCallback(explorer)
    model.learn(STEPS * ENVS, callback=[callback, stop])
    assert int(explorer._state.updates) == 0
    model.learn(STEPS * ENVS, callback=callback, reset_num_timesteps=False)
    assert int(explorer._state.updates) == 1
    assert len(explorer.last_bonus) == STEPS


def test_explorers_are_saved_beside_checkpoints_and_resumed(tmp_path: Path):
    model = make()
    explorer = explorer_of(model)
    where = {"save_freq": STEPS + 2, "save_path": str(tmp_path)}
    model.learn(2 * STEPS * ENVS, callback=[ExplorationCallback(explorer, **where), CheckpointCallback(**where)])
    assert {file.name for file in tmp_path.iterdir()} == {"rl_model_68_steps.zip", "rl_model_explorer_68_steps"}
    model = sb3.PPO.load(tmp_path / "rl_model_68_steps.zip", DummyVecEnv(makers()), device="cpu")
    loaded, direct = (etd.Explorer.load(tmp_path / "rl_model_explorer_68_steps") for _ in range(2))
    assert int(loaded._state.updates) == 1
    (rollout,) = train(model, loaded, 1, reset_num_timesteps=False)
    direct.reset()
    direct.reward(**Replay("vector", "discrete", as_it_is()).play(rollout["actions"]))
    np.testing.assert_array_equal(loaded.last_bonus, direct.last_bonus)


# Mistakes --------------------------------------------------------------------------------------------------------


class Silent(VecEnvWrapper):
    """Hides where episodes ended."""

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        obs, rewards, dones, infos = self.venv.step_wait()
        for info in infos:
            info.pop("terminal_observation", None)
        return obs, rewards, dones, infos


class OtherBuffer(sb3.common.buffers.RolloutBuffer):
    """Computes no advantages."""

    def compute_returns_and_advantage(self, last_values: Any, dones: Any) -> None:
        pass


def test_what_cannot_be_is_refused():
    model = make()
    explorer = explorer_of(model)
    images, parts = (
        make(envs=DummyVecEnv(makers("image"))),
        make(sb3.PPO, DummyVecEnv(makers("dict")), "MultiInputPolicy"),
    )
    hwc = etd.Explorer("etd", Walk(0, "image").observation_space, model.action_space, ENVS, max_steps=LIMIT)
    one = DummyVecEnv(makers()[:1])
    refused = [
        (sb3.DQN("MlpPolicy", one), explorer, "", "DQN learns from a replay buffer"),
        (make(envs=one), explorer, "", r"made for other environments.*model.n_envs is 1"),
        (images, hwc, "", r"made for other environments.*model.observation_space"),
        (parts, explorer, "", r"a Dict of image, place; say which .* part="),
        (parts, explorer, "camera", "part is 'camera', but"),
        (make(n_steps=24), explorer_of(model, minibatch=32), "", "minibatch = 32 does not divide"),
        (make(envs=Silent(DummyVecEnv(makers()))), explorer, "", "does not say where an episode ended"),
        (make(rollout_buffer_class=OtherBuffer), explorer, "", "OtherBuffer computes advantages in its own way"),
    ]
    for other, given, part, sentence in refused:
        with pytest.raises(etd.UserError, match=sentence):
            other.learn(STEPS * ENVS, callback=ExplorationCallback(given, part))
    with pytest.raises(etd.UserError, match=r"needs an etd.Explorer"):
        ExplorationCallback("etd")
    with pytest.raises(etd.UserError, match="save_path does not say where"):
        ExplorationCallback(explorer, save_freq=100)
    with pytest.raises(etd.UserError, match="save_freq is -1"):
        ExplorationCallback(explorer, save_freq=-1, save_path="x")
    with pytest.raises(etd.UserError, match="Inside EveryNTimesteps the callback would see only some"):
        model.learn(STEPS * ENVS, callback=EveryNTimesteps(4, ExplorationCallback(explorer)))


def test_the_example_trains(tmp_path: Path, examples: Path) -> None:
    """Two rollouts of it, with the bonus."""
    example = examples / "sb3_etd.py"
    words = ["--env", "MiniGrid-Empty-5x5-v0", "--steps", "2048", "--rollout", "64", "--epochs", "1"]
    out = tmp_path / "sb3.csv"
    subprocess.run([sys.executable, str(example), *words, "--out", str(out)], check=True)
    assert [row.split(",")[0] for row in out.read_text().splitlines()] == ["step", "1024", "2048"]
