"""Craftax-Classic against the package it comes from: the same starts, steps, rewards and ends."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etd.agent.ppo import PPO
from etd.bonuses import ETD
from etd.core.errors import UserError
from etd.core.keys import named
from etd.envs import Task, autoreset, craftax, families, ids
from etd.training import compiled, presets
from etd.training.evaluate import replay
from etd.training.experiment import Experiment

PIXELS, SYMBOLIC = "Craftax-Classic-Pixels-v1", "Craftax-Classic-Symbolic-v1"
NOLIFE = "Craftax-Classic-Symbolic-NoLife-v1"
ENVS, STEPS = 4, 48


@pytest.fixture(scope="module")
def package():
    return pytest.importorskip("craftax.craftax_env")


@pytest.fixture(scope="module")
def constants(package):
    from craftax.craftax_classic import constants

    return constants


@pytest.fixture(scope="module")
def world(package, quick):
    """A start in numbers, as ``reset`` gives it."""
    return quick(craftax.make(SYMBOLIC).reset)(jax.random.key(7))[0]


@pytest.fixture(scope="module")
def stepped(package, quick):
    """One step in numbers; which chance and which limit are arguments, so that all tests share what is compiled."""

    @quick
    def step(state, action, rng=None):
        state = state if rng is None else state.replace(state_rng=rng)
        return craftax.Craftax(SYMBOLIC).step(state, action)

    return step


# Without the package ---------------------------------------------------------------------------------------------


def test_nothing_of_it_is_imported_until_it_is_made():
    code = "import sys, etd.envs; assert not {'craftax', 'crafter'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_package_is_said(monkeypatch):
    monkeypatch.setattr(families, "find_spec", lambda name: None)
    assert families.remedy(PIXELS) == "pip install 'etd[craftax]'"
    with pytest.raises(UserError, match=r"Craftax-Classic-Pixels-v1 needs craftax.*pip install 'etd\[craftax\]'"):
        Task(PIXELS).make()


def test_ids_are_tasks(monkeypatch):
    monkeypatch.setattr(families, "find_spec", lambda name: object())
    assert families.remedy(PIXELS) == ""
    assert len(craftax.IDS) == 4
    assert set(craftax.IDS) <= set(ids())
    for name in craftax.IDS:
        env, spec = Task(name).make(), Task(name).spec
        assert env == craftax.make(name)
        assert hash(env) == hash(craftax.make(name))
        assert spec.name == name
        assert presets.group_of(Task(name)) == "crafter"
        assert (spec.action.n, spec.max_steps, spec.shortest, len(spec.achievements)) == (17, 10_000, 5, 22)
        pixels = "Pixels" in name
        assert (spec.obs_shape, spec.obs_dtype) == (((63, 63, 3), "uint8") if pixels else ((1345,), "float32"))
        assert (spec.kind, spec.obs_high) == (("pixels", 255.0) if pixels else ("vector", 1.0))
        assert env.life == ("NoLife" not in name)
    with pytest.raises(UserError, match="Craftax-Classic-Pixels-v1"):
        Task("Craftax-Classic-Pixel-v1").make()
    with pytest.raises(UserError, match="only to MiniGrid"):
        Task(PIXELS, view_size=5).make()


def test_achievements_are_named_and_ordered_as_crafters():
    crafter = pytest.importorskip("crafter")
    assert list(craftax.ACHIEVEMENTS) == crafter.constants.achievements == sorted(craftax.ACHIEVEMENTS)


# Against the package ---------------------------------------------------------------------------------------------


def theirs(package, name, states, actions):
    """What the package makes of the same starts, actions and keys: observations, rewards and ends, [T, N, ...]."""
    game = package.make_craftax_env_from_name(name, auto_reset=False)

    def one(states, action):
        keys = jax.vmap(craftax.chance)(states)
        obs, after, reward, done, _ = jax.vmap(game.step_env, (0, 0, 0, None))(
            keys, states, action, game.default_params
        )
        after = jax.tree.map(lambda new, old: new.astype(old.dtype), after, states)
        return after, (obs, reward, done, after.achievements)

    return jax.lax.scan(one, states, actions)


def ours(env, states, actions):
    def one(states, action):
        before = states
        states, step = jax.vmap(env.step)(states, action)
        return states, (before, step)

    return jax.lax.scan(one, states, actions)


def assert_seen(ours, theirs):
    """Bytes are the nearest to the package's shades; two programs may differ in a last bit, and so round a half."""
    scale, apart = (255, 0.501) if ours.dtype == np.uint8 else (1, 1e-6)
    np.testing.assert_allclose(ours.astype(np.float32), scale * theirs, rtol=0, atol=apart)


@pytest.mark.suites
@pytest.mark.parametrize("name", [PIXELS, SYMBOLIC])
def test_episodes_are_the_packages(name, package, constants, quick, rng):
    """Random play for some time, late in the day, with health and food low so that some die."""
    env, game = craftax.make(name), package.make_craftax_env_from_name(name, auto_reset=False)
    keys = jax.random.split(jax.random.key(3), ENVS)

    def starts(keys):
        return jax.vmap(env.reset)(keys), jax.vmap(lambda key: game.reset_env(key, game.default_params))(keys)

    (state, obs), (their_obs, their_state) = jax.device_get(quick(starts)(keys))
    assert_seen(obs, their_obs)
    jax.tree.map(np.testing.assert_array_equal, state, their_state.replace(state_rng=state.state_rng))
    state = state.replace(
        timestep=np.array([0, 150, 250, 9_980], np.int32),
        player_health=np.array([9, 1, 2, 9], np.int32),
        player_food=np.array([9, 0, 0, 9], np.int32),
        player_recover=np.array([0, -10, 0, 0], np.float32),
    )
    actions = rng.choice([1, 2, 3, 4, 5, 5, 6, 8, 11, 16], size=(STEPS, ENVS)).astype(np.int32)
    _, (before, step) = jax.device_get(quick(lambda s, a: ours(env, s, a))(state, actions))
    _, (seen, reward, done, achieved) = jax.device_get(quick(lambda s, a: theirs(package, name, s, a))(state, actions))
    assert_seen(step.next_obs, seen)
    assert step.next_obs.dtype == np.dtype(env.spec.obs_dtype)
    np.testing.assert_allclose(step.reward, reward, atol=1e-6)
    np.testing.assert_array_equal(step.done, done)
    by_name = {a.name.lower(): achieved[..., a.value] for a in constants.Achievement}
    for k, achievement in enumerate(craftax.ACHIEVEMENTS):
        np.testing.assert_array_equal(step.achieved[..., k], by_name[achievement])
    # The limit ends the last, hunger the second; who starved was not cut off.
    assert step.truncated[:, 3].argmax() == 19
    assert not step.truncated[:, :3].any()
    assert step.terminated[:, 1].any()
    assert not step.terminated[:, 0].any()
    assert step.achieved.any()
    assert len(np.unique(before.state_rng.reshape(-1, 2), axis=0)) == STEPS * ENVS


@pytest.mark.suites
@pytest.mark.parametrize("name", [PIXELS, SYMBOLIC])
def test_starts_and_steps_have_the_same_types(name, package):
    env = craftax.make(name)
    start, obs = jax.eval_shape(env.reset, jax.random.key(0))
    after, step = jax.eval_shape(env.step, start, jnp.int32(0))
    assert jax.tree.structure(start) == jax.tree.structure(after)
    for one, two in zip(jax.tree.leaves((start, obs)), jax.tree.leaves((after, step.next_obs)), strict=True):
        assert (one.shape, one.dtype, one.weak_type) == (two.shape, two.dtype, two.weak_type)
        assert not one.weak_type
    assert (obs.shape, obs.dtype) == (env.spec.obs_shape, env.spec.obs_dtype)


@pytest.mark.suites
def test_death_by_lava_and_by_wounds_terminates(world, stepped, constants):
    row, column = np.asarray(world.player_position)
    lava = world.replace(map=world.map.at[row, column - 1].set(constants.BlockType.LAVA.value))
    after, step = stepped(lava, jnp.int32(constants.Action.LEFT.value))
    assert step.terminated
    assert not step.truncated
    assert after.player_health == 0
    np.testing.assert_allclose(step.reward, -0.9, rtol=1e-6)
    alive, step = stepped(lava, jnp.int32(constants.Action.RIGHT.value))
    assert not step.done
    assert alive.player_health == 9
    # Struck by a zombie for 2 with 1 left: health stops at 0, and so does what is lost.
    zombies = world.zombies.replace(
        position=world.zombies.position.at[0].set(world.player_position + jnp.array([1, 0])),
        mask=world.zombies.mask.at[0].set(True),
        health=world.zombies.health.at[0].set(5),
    )
    after, step = stepped(world.replace(zombies=zombies, player_health=jnp.int32(1)), jnp.int32(0))
    assert step.terminated
    np.testing.assert_allclose(step.reward, -0.1, rtol=1e-6)


@pytest.mark.suites
def test_the_last_step_can_be_both_ends(world, stepped, constants):
    row, column = np.asarray(world.player_position)
    late = world.replace(
        map=world.map.at[row, column - 1].set(constants.BlockType.LAVA.value), timestep=jnp.int32(9_999)
    )
    _, step = stepped(late, jnp.int32(constants.Action.LEFT.value))
    assert step.terminated
    assert step.truncated
    _, step = stepped(late, jnp.int32(constants.Action.RIGHT.value))
    assert not step.terminated
    assert step.truncated


@pytest.mark.suites
def test_achievements_by_name_and_what_they_pay(world, stepped, constants, quick):
    """Wood is cut; then the same while a wound heals."""
    row, column = np.asarray(world.player_position)
    tree = world.replace(
        map=world.map.at[row, column - 1].set(constants.BlockType.TREE.value),
        player_direction=jnp.int32(constants.Action.LEFT.value),
    )
    after, step = stepped(tree, jnp.int32(constants.Action.DO.value))
    assert [craftax.ACHIEVEMENTS[k] for k in np.flatnonzero(step.achieved)] == ["collect_wood"]
    assert after.inventory.wood == 1
    assert step.reward == 1
    healing = tree.replace(player_health=jnp.int32(5), player_recover=jnp.float32(25))
    _, step = stepped(healing, jnp.int32(constants.Action.DO.value))
    np.testing.assert_allclose(step.reward, 1.1, rtol=1e-6)
    _, nolife = quick(craftax.make(NOLIFE).step)(healing, jnp.int32(constants.Action.DO.value))
    assert nolife.reward == 1
    assert nolife.reward.dtype == np.float32
    jax.tree.map(np.testing.assert_array_equal, nolife._replace(reward=0), step._replace(reward=0))


@pytest.mark.suites
def test_lava_is_never_nearer_than_the_shortest_episode(package, constants, quick):
    """In many worlds; and at the largest value that noise can take, rounding puts none at four steps."""
    env = craftax.make(SYMBOLIC)
    keys = jax.random.split(jax.random.key(0), 512)
    maps = np.asarray(jax.jit(jax.vmap(lambda key: env.reset(key)[0].map))(keys))
    y, x = np.mgrid[-32:32, -32:32]
    nearest = np.where(maps == constants.BlockType.LAVA.value, abs(y) + abs(x), 99).min((1, 2))
    assert craftax.SHORTEST <= nearest.min() < 20
    assert (maps[:, 32, 32] == constants.BlockType.GRASS.value).all()
    highest = quick(lambda noise, near: noise + 0.05 + jnp.clip(near / 5.0, 0.0, 1.0) - 1.0 > 0.85)
    assert not highest(jnp.float32(1), jnp.float32(4))
    assert highest(jnp.float32(1), jnp.float32(5))


# As an environment -----------------------------------------------------------------------------------------------


@pytest.mark.suites
def test_an_episode_is_played_again_from_its_start_and_actions(world, quick, rng):
    env = craftax.make(SYMBOLIC)
    actions = rng.integers(17, size=STEPS).astype(np.int32)
    keys = [jax.random.split(jax.random.key(k), STEPS) for k in (0, 1)]
    states = [quick(lambda keys: replay(env, world, actions, keys))(some) for some in keys]
    jax.tree.map(np.testing.assert_array_equal, *states)
    assert len(np.unique(states[0].cows.position[-1])) > 1


@pytest.mark.suites
def test_fingerprints_tell_states_apart_and_leave_out_clocks(world, package, quick):
    env = craftax.make(SYMBOLIC)
    name = quick(env.fingerprint)
    changed = [
        world.replace(map=world.map.at[3, 5].add(1)),
        world.replace(map=world.map.at[5, 3].add(1)),
        world.replace(player_position=world.player_position + jnp.array([1, 0])),
        world.replace(player_position=world.player_position + jnp.array([0, 1])),
        world.replace(player_direction=world.player_direction - 1),
        world.replace(player_food=world.player_food - 1),
        world.replace(player_drink=world.player_drink - 1),
        world.replace(inventory=world.inventory.replace(iron=world.inventory.iron + 1)),
        world.replace(achievements=world.achievements.at[4].set(True)),
        world.replace(cows=world.cows.replace(mask=world.cows.mask.at[1].set(True))),
    ]
    assert len({int(name(state)) for state in [world, *changed]}) == len(changed) + 1
    assert name(world).dtype == np.uint32
    same = [
        world.replace(timestep=world.timestep + 1, light_level=world.light_level / 2, state_rng=world.state_rng + 1),
        world.replace(player_hunger=world.player_hunger + 1),
        world.replace(cows=world.cows.replace(position=world.cows.position + 1)),  # none is alive yet
    ]
    assert {int(name(state)) for state in same} == {int(name(world))}
    low = {int(name(world.replace(map=world.map.at[k // 64, k % 64].add(1)))) % (1 << 18) for k in range(0, 4096, 8)}
    assert len(low) > 505  # of 512; by chance one pair in 2 collides


@pytest.mark.suites
@pytest.mark.parametrize("name", [PIXELS, SYMBOLIC])
def test_starts_in_a_batch_are_those_made_alone(name, package):
    """As the trainer makes them, 16 environments at a time, compiled in full; on every device, this must hold."""
    env, key = craftax.make(name), jax.random.key(0)
    alone = jax.jit(lambda n, k: env.reset(named(key, "level", n, k)))
    envs = jax.jit(lambda: autoreset.begin(env, key, 16))()
    pool = jax.jit(lambda envs: autoreset.generate(env, key, envs, 3))(envs)
    for k, starts in [(0, envs.now), *((k + 1, jax.tree.map(lambda x, k=k: x[k], pool.starts)) for k in range(3))]:
        for n in range(16):
            state, obs = alone(n, k)
            jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda x, n=n: x[n], starts.state), state)
            apart = np.abs(np.asarray(starts.obs[n], np.float32) - np.asarray(obs, np.float32))
            assert apart.max() <= (1 if env.pixels else 1e-6)


@pytest.mark.suites
@pytest.mark.parametrize("name", [PIXELS, SYMBOLIC])
def test_steps_in_a_batch_are_those_taken_alone(name, package, rng):
    env = craftax.make(name)
    begin, alone, together = jax.jit(env.reset), jax.jit(env.step), jax.jit(jax.vmap(env.step))
    singles = [begin(key)[0] for key in jax.random.split(jax.random.key(1), 16)]
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *singles)
    for actions in rng.integers(17, size=(24, 16)).astype(np.int32):
        batch, step = together(batch, actions)
        pairs = [alone(state, action) for state, action in zip(singles, actions, strict=True)]
        singles = [state for state, _ in pairs]
        state, expected = jax.tree.map(lambda *leaves: np.stack(leaves), *pairs)
        jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=0, atol=1e-6), batch, state)
        np.testing.assert_allclose(step.reward, expected.reward, atol=1e-6)
        np.testing.assert_array_equal(step.done, expected.done)
        assert np.abs(np.asarray(step.next_obs, np.float32) - expected.next_obs).max() <= (1 if env.pixels else 1e-6)


@pytest.mark.suites
def test_finished_environments_take_their_next_start(package, quick):
    """Episodes of two steps under autoreset: three rollouts give each environment the starts of its own name."""
    env, key, rollout = craftax.make(SYMBOLIC, max_steps=2), jax.random.key(5), 4
    assert autoreset.pool_size(env.spec, rollout) == 2

    @quick
    def run(envs):
        pool = autoreset.generate(env, key, envs, 2)

        def one(envs, _):
            after, step = autoreset.step(env, pool, envs, jnp.zeros(2, jnp.int32), key)
            return after, (after, step)

        return jax.lax.scan(one, envs, None, rollout)

    envs, maps = quick(lambda: autoreset.begin(env, key, 2))(), []
    for _ in range(2):
        envs, (after, step) = run(envs)
        np.testing.assert_array_equal(np.asarray(step.truncated)[:, 0], [False, True] * 2)
        assert not step.terminated.any()
        # The true successor is not what is seen next where an episode ended.
        differ = (np.asarray(step.next_obs) != np.asarray(after.now.obs)).any(-1)
        np.testing.assert_array_equal(differ, step.done)
        np.testing.assert_array_equal(np.asarray(after.now.state.timestep)[:, 0], [1, 0, 1, 0])
        maps += list(np.asarray(after.now.state.map)[[1, 3]])
    level = quick(jax.vmap(lambda n, k: env.reset(named(key, "level", n, k))[0].map, (None, 0)))
    for n in range(2):
        np.testing.assert_array_equal(np.stack(maps)[:, n], level(n, jnp.arange(1, 5)))


@pytest.mark.suites
@pytest.mark.usefixtures("compile_quickly")
@pytest.mark.parametrize("name", [PIXELS, NOLIFE])
def test_an_agent_trains(name, package):
    experiment = Experiment(
        env=Task(name),
        bonus=ETD(minibatch=8, epochs=1, features=8, latent=8, embedding=8),
        ppo=PPO(minibatch=8, epochs=1, features=8, latent=8, norm="layer"),
        num_envs=2,
        rollout_steps=8,
        seeds=2,
    )
    state, metrics = compiled.make_step(experiment)(compiled.make_init(experiment)())
    assert np.asarray(metrics["alive"]).all()
    assert {f"unlocked_{name}" for name in craftax.ACHIEVEMENTS} <= metrics.keys()
    assert np.isfinite(metrics["score"]).all()
    np.testing.assert_array_equal(state.envs.now.state.timestep, 8)


@pytest.mark.suites
def test_it_can_be_made_while_something_is_being_compiled(package):
    """What the package computes on import must not leak out of that compilation; and it says nothing."""
    code = (
        "import jax\n"
        "from etd.envs import craftax\n"
        f"env = craftax.make({PIXELS!r})\n"
        "jax.eval_shape(jax.vmap(env.reset), jax.random.split(jax.random.key(0), 2))\n"
        "from craftax.craftax_classic import constants\n"
        "kept = [constants.DIRECTIONS, *jax.tree.leaves(constants.load_all_textures())]\n"
        "assert not any(isinstance(leaf, jax.core.Tracer) for leaf in kept)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout == ""


@pytest.mark.suites
def test_a_picture_shows_what_the_pixels_show(package, quick, world):
    """By day, tile by tile: the picture's mean colours are those of the observation."""
    env = craftax.make(SYMBOLIC)
    picture = env.render(jax.device_get(world))
    assert (picture.shape, picture.dtype) == ((576, 576, 3), np.uint8)
    np.testing.assert_array_equal(picture, craftax.make(PIXELS).render(world))
    np.testing.assert_array_equal(picture[::4, ::4].repeat(4, 0).repeat(4, 1), picture)
    obs = np.asarray(quick(craftax.make(PIXELS).reset)(jax.random.key(7))[1])
    fine, coarse = (p[: 7 * n].reshape(7, n, 9, n, 3).mean((1, 3)) for p, n in ((picture, 64), (obs, 7)))
    assert abs(fine - coarse).max() < 40
    assert np.corrcoef(fine.ravel(), coarse.ravel())[0, 1] > 0.95
