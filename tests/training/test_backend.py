"""Environments on the device behind the interface that training, evaluation and films use; those of the host have
test_host."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etd.agent.ppo import PPO
from etd.bonuses import NoBonus
from etd.core.errors import UserError
from etd.core.keys import named
from etd.core.types import Discrete, EnvSpec, Transition
from etd.envs import Task
from etd.lab.runs import session
from etd.training import backend, compiled, spec_check
from etd.training.experiment import Experiment


@dataclass(frozen=True)
class Walk:
    """A random walk whose steps are drawn: a state is (place, time), and both are seen. It is over after ``length``
    steps, or never."""

    length: int | None = 4
    shortest: int = 4
    max_steps: int = 4

    @property
    def spec(self):
        return EnvSpec(
            "walk", (2,), "float32", 1.0, Discrete(2), self.max_steps, self.shortest, "vector", can_succeed=False
        )

    def make(self):
        return self

    def host(self):
        return None

    def observe(self, state):
        return jnp.stack([state[0].astype(jnp.float32), state[1].astype(jnp.float32)])

    def reset(self, key):
        state = (jax.random.randint(key, (), 0, 1000), jnp.zeros((), jnp.int32))
        return state, self.observe(state)

    def step(self, state, action, key):
        state = (state[0] + action + jax.random.randint(key, (), 0, 1000), state[1] + 1)
        over = jnp.bool_(False) if self.length is None else state[1] == self.length
        reward = (state[0] % 7).astype(jnp.float32)
        return state, Transition(self.observe(state), reward, jnp.bool_(False), over, state[0].astype(jnp.uint32))

    def render(self, state):
        return np.full((2, 2, 3), int(state[0]) % 256, np.uint8)


SMALL = Experiment(
    env=Walk(), bonus=NoBonus(), ppo=PPO(minibatch=8, epochs=1, features=8, latent=8), num_envs=2, rollout_steps=8
)

pytestmark = pytest.mark.usefixtures("compile_quickly")


def test_a_film_shows_the_episode_that_was_played():
    """In an environment whose steps are drawn: states, rewards and pictures are those of the rollout, also of an
    episode that is not the first."""
    with backend.open(SMALL) as agents:
        state = agents.start()
        episode = agents.film(state, 0, 5, False, lambda length: [0, length])
        played = compiled.make_player(SMALL, 5, False)(state, 0, named(state.key[0], "film"))
    best = int(played.outcome.total.argmax())
    assert best > 0
    seen = jax.vmap(Walk().observe)(jax.tree.map(jnp.asarray, episode.states))
    np.testing.assert_array_equal(seen[:-1], played.rollout.obs[:4, best])
    np.testing.assert_array_equal(seen[1:], played.rollout.next_obs[:4, best])
    np.testing.assert_array_equal(episode.rewards, played.rollout.step.reward[:4, best])
    np.testing.assert_array_equal(episode.actions, played.rollout.action[:4, best])
    assert list(episode.pictures) == [0, 4]
    assert episode.pictures[4][0, 0, 0] == int(seen[-1, 0]) % 256


def test_shapes_are_those_of_the_first_state():
    shapes = backend.shapes(SMALL)
    start = backend.open(SMALL).start()
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), shapes) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), start
    )


def test_an_episode_without_end_is_not_waited_for():
    with (
        backend.open(replace(SMALL, env=Walk(length=None, max_steps=70))) as agents,
        pytest.raises(UserError, match=r"walk has reached \d+ steps, but its spec says max_steps=70\."),
    ):
        agents.evaluate(agents.start(), 0, 3)


# An environment that breaks its spec ends the run -------------------------------------------------------------------


@pytest.fixture
def walk(monkeypatch):
    """Which one Task("walk") makes."""

    def choose(env):
        monkeypatch.setattr(Task, "make", lambda _: env)

    choose(Walk())
    return choose


NAMED = replace(SMALL, env=Task("walk"), steps=16, seeds=2)


@pytest.mark.parametrize(
    ("broken", "steps", "sentence"),  # other steps, so that neither gets the other's program
    [
        (
            # In 8 steps two starts suffice for episodes of 4; those of 2 take four. 2 seeds x 2 environments x 2.
            Walk(length=2),
            64,
            r"walk took 2 steps, but its spec says shortest=4: .* 8 would have been played twice\. Set shortest=2 in",
        ),
        pytest.param(
            Walk(length=None), 80, r"walk has reached 8 steps, but its spec says max_steps=4\.", marks=pytest.mark.slow
        ),
    ],
)
def test_a_broken_spec_ends_the_run_and_saves_nothing_of_it(walk, broken, steps, sentence, tmp_path):
    run = session.train(experiment=NAMED, out=tmp_path / "run", quiet=True)
    walk(broken)
    with pytest.raises(UserError, match=sentence):
        session.resume(run.path, steps=steps, quiet=True)
    assert [file.stem for file in run.checkpoints()] == ["0000001"]
    assert list(run.metrics()["iteration"]) == [1, 1]
    walk(Walk())
    again = session.resume(run.path, steps=32, quiet=True)
    assert list(again.metrics()["iteration"]) == [1, 1, 2, 2]
    assert not set(spec_check.MEASURED) & again.metrics().keys()
