"""The bonus outside our trainer is the bonus inside it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import etd
from etd.adapters.explorer import Explorer, _happened
from etd.adapters.spaces import Interface
from etd.bonuses import BONUSES, ETD, NoBonus
from etd.core.hashing import fingerprint
from etd.core.keys import named
from etd.core.moments import Moments
from etd.core.types import Rollout
from etd.training import backend, presets
from etd.training.reward import Mix

STEPS, ENVS, LONGEST = 16, 4, 100
SPACES = (spaces.Box(0, 255, (7, 7, 3), np.uint8), spaces.Discrete(7))
SMALL = {"features": 8, "latent": 8, "minibatch": 32, "epochs": 1}
ENDLESS = (np.zeros((STEPS, ENVS), bool), np.zeros((STEPS, ENVS), bool))
FEW = {"count", "etd"}
TAUGHT = [
    pytest.param(name, marks=() if name in FEW else pytest.mark.slow)
    for name in sorted(set(BONUSES) - {"agac", "none", "mixture"})
]
"""All are tested, most of them in the slow tier: each is compiled several times."""
RECURRENT = [pytest.param(f"{name} with gru", marks=pytest.mark.slow) for name in ("icm", "ngu", "e3b")]


def small(name: str) -> dict:
    return {key: value for key, value in SMALL.items() if hasattr(BONUSES[name](), key)}


def make(name: str = "etd", **more: object) -> Explorer:
    name, _, cell = name.partition(" with ")
    more |= {"cell": cell} if cell else {}
    return Explorer(name, *SPACES, ENVS, **{"max_steps": LONGEST, "seed": 5, **small(name), **more})


@pytest.fixture(scope="module")
def experiment() -> etd.Experiment:
    """Our own trainer, as small as the explorers here."""
    base = replace(presets.choose("MiniGrid-Empty-5x5-v0", "etd"), num_envs=ENVS, rollout_steps=STEPS, seed=5)
    ppo = etd.PPO(minibatch=32, epochs=1, features=8, latent=8)
    return replace(base, ppo=ppo, bonus=ETD(**SMALL), mix=Mix())


def one_seed(tree: object) -> object:
    return jax.tree.map(lambda leaf: np.asarray(leaf[0]), tree)


@pytest.fixture(scope="module")
def trained(experiment) -> tuple[list[Rollout], list]:
    """Three rollouts of our own trainer, one seed's, and its states before each and after the last."""
    rollouts, states = [], []
    with backend.open(experiment) as agents:
        state = agents.start()
        for _ in range(3):
            rollouts.append(one_seed(agents.collect(state)[1]))
            states.append(one_seed(state.learner.bonus))
            state, _ = agents.advance(state)
        states.append(one_seed(state.learner.bonus))
    return rollouts, states


@pytest.fixture(scope="module")
def rollouts(experiment) -> list[Rollout]:
    """Three rollouts of our own trainer, with the hash of the observations in place of that of the states, which nobody
    outside an environment knows."""
    hashed, found = jax.jit(jax.vmap(jax.vmap(fingerprint))), []
    with backend.open(replace(experiment, bonus=NoBonus())) as agents:
        state = agents.start()
        for _ in range(3):
            state, rollout = agents.collect(state)
            one = one_seed(rollout)
            found.append(one._replace(step=one.step._replace(fingerprint=hashed(one.next_obs))))
    assert any(one.done[:-1].any() for one in found)  # episodes end within them
    return found


def steps(rollout: Rollout, part: slice | int = slice(None)) -> tuple[np.ndarray, ...]:
    """The arguments of ``reward``."""
    columns = (rollout.obs[:-1], rollout.action, rollout.next_obs, rollout.step.terminated, rollout.step.truncated)
    return tuple(np.asarray(column)[part] for column in columns)


@pytest.mark.slow
def test_it_is_what_our_trainer_computes(experiment, trained):
    """To rounding, as the trainer's iteration is compiled as a whole."""
    rollouts, states = trained
    explorer = Explorer(experiment.bonus, *SPACES, ENVS, max_steps=experiment.env.spec.max_steps, seed=5)
    assert_near(explorer._state.bonus, states[0])
    for rollout, after in zip(rollouts, states[1:], strict=True):
        explorer.reward(*steps(rollout), rollout.step.reward)
        explorer.update()
        assert_near(explorer._state.bonus, after)


def assert_near(one: object, other: object) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=5e-3, atol=1e-3), one, other)


@pytest.mark.parametrize("name", [*TAUGHT, *RECURRENT])
def test_a_whole_rollout_is_scored_and_learned_to_the_bit(name, rollouts, quick):
    explorer = make(name)
    bonus, key = explorer.bonus, jax.random.key(5)
    score, improve, mix = map(quick, (bonus.score, bonus.improve, explorer.mix))
    state = quick(lambda key: bonus.init(key, explorer.spec, ENVS))(named(key, "bonus"))
    moments = Moments.start()
    for number, rollout in enumerate(rollouts):
        now = named(key, "iteration", jnp.int32(number))
        state, scored = score(state, rollout, named(now, "score"))
        moments, reward = mix(moments, rollout.step.reward, scored.bonus)
        np.testing.assert_array_equal(explorer.reward(*steps(rollout), rollout.step.reward), reward)
        np.testing.assert_array_equal(explorer.last_bonus, scored.bonus)
        state, _ = improve(state, rollout, scored.trace, named(now, "model"))
        explorer.update()
        jax.tree.map(np.testing.assert_array_equal, explorer._state.bonus, state)


@pytest.mark.parametrize("name", [*TAUGHT, *RECURRENT])
def test_step_by_step_is_the_same_to_rounding(name, rollouts):
    whole, single = make(name), make(name)
    for rollout in rollouts:
        whole.reward(*steps(rollout))
        for time in range(STEPS):
            single.reward(*steps(rollout, time))
            np.testing.assert_allclose(single.last_bonus[0], whole.last_bonus[time], rtol=2e-3, atol=1e-4)
        whole.update()
        single.update()
        assert_near(single._state.bonus, whole._state.bonus)
        np.testing.assert_allclose(single._state.moments, whole._state.moments, rtol=1e-4)


def test_steps_that_did_not_happen_change_nothing(rollouts):
    """As with vector environments that reset in a step of their own."""
    columns = next(columns for columns in map(steps, rollouts) if (columns[3] | columns[4])[:-1].any())
    time, env = np.argwhere((columns[3] | columns[4])[:-1])[0]
    plain, masked = make(), make()
    plain.reward(*columns)
    # The environment's later steps are delayed by one, in which it goes from its last observation to a first one.
    delayed = [column.copy() for column in columns]
    for column in delayed:
        column[time + 2 :, env] = column[time + 1 : -1, env]
    delayed[0][time + 1, env], delayed[2][time + 1, env] = columns[2][time, env], columns[0][time + 1, env]
    delayed[3][time + 1, env] = delayed[4][time + 1, env] = False
    mask = np.ones((STEPS, ENVS), bool)
    mask[time + 1, env] = False
    reward = masked.reward(*delayed, mask=mask)
    assert reward[time + 1, env] == masked.last_bonus[time + 1, env] == 0
    np.testing.assert_allclose(masked.last_bonus[time + 2 :, env], plain.last_bonus[time + 1 : -1, env], rtol=1e-4)
    others = np.arange(ENVS) != env
    np.testing.assert_allclose(masked.last_bonus[:, others], plain.last_bonus[:, others], rtol=1e-4)
    assert np.isfinite(masked.update()["model_loss"])


def ended(rollouts: list[Rollout]) -> tuple[list[np.ndarray], np.ndarray]:
    """Steps of which one, where an episode has ended before, did not happen, and the mask that says so."""
    columns = next(columns for columns in map(steps, rollouts) if (columns[3] | columns[4])[:-1].any())
    time, env = np.argwhere((columns[3] | columns[4])[:-1])[0]
    mask = np.ones((STEPS, ENVS), bool)
    mask[time + 1, env] = False
    changed = [column.copy() for column in columns]
    changed[0][time + 1, env] = changed[2][time, env]
    changed[2][time + 1, env] = columns[0][time + 2, env] if time + 2 < STEPS else columns[2][time + 1, env]
    changed[3][time + 1, env] = changed[4][time + 1, env] = False
    return changed, mask


def test_nothing_is_learned_from_steps_that_did_not_happen(rollouts):
    columns, mask = ended(rollouts)
    other = [column.copy() for column in columns]
    (time,), (env,) = np.nonzero(~mask)
    other[0][time, env], other[1][time, env], other[2][time, env] = 9, 6, 8
    one, two = make(), make()
    for explorer, given in ((one, columns), (two, other)):
        explorer.reward(*given, mask=mask)
        explorer.update()
    jax.tree.map(np.testing.assert_array_equal, one._state.bonus, two._state.bonus)
    np.testing.assert_array_equal(one.last_bonus, two.last_bonus)


def test_a_real_step_stands_in_for_one_that_did_not_happen():
    real = np.array([[0, 1, 0], [1, 0, 0], [0, 1, 0]], bool)
    names = jnp.arange(9).reshape(3, 3)  # of the steps, by time and environment
    rollout = Rollout.of(names, names, names + 100, names.astype(float), real, ~real)
    rollout, trace = _happened(rollout, {"hidden": names[..., None]}, real)
    expected = [[3, 1, 1], [3, 1, 1], [3, 7, 1]]  # nothing happened in the last environment
    for found in (rollout.obs[:-1], rollout.action, rollout.next_obs - 100, trace["hidden"][..., 0]):
        assert found.tolist() == expected
    np.testing.assert_array_equal(rollout.done, True)


def test_masks_in_the_midst_of_an_episode_and_of_everything_are_refused(rollouts):
    explorer, untouched, columns = make(), make(), steps(rollouts[0])
    time, env = np.argwhere(~(columns[3] | columns[4])[:-1])[0]
    mask = np.ones((STEPS, ENVS), bool)
    mask[time + 1, env] = False
    with pytest.raises(etd.UserError, match=rf"environment {env} did nothing at step {time + 1}, though its episode"):
        explorer.reward(*columns, mask=mask)
    for one in (explorer, untouched):
        one.reward(*columns)
    jax.tree.map(np.testing.assert_array_equal, explorer._state, untouched._state)
    idle = make()
    assert not idle.reward(*columns, mask=np.zeros((STEPS, ENVS), bool)).any()
    with pytest.raises(etd.UserError, match="none of the steps happened"):
        idle.update()


def test_arrays_may_be_used_again_for_the_next_step(rollouts):
    """As in loops that keep one buffer for all rollouts."""
    columns, buffer = steps(rollouts[0]), [column[0].copy() for column in steps(rollouts[0])]
    fresh, reused = make(), make()
    for time in range(4):
        for kept, column in zip(buffer, columns, strict=True):
            kept[...] = column[time]
        np.testing.assert_array_equal(reused.reward(*buffer), fresh.reward(*(column[time] for column in columns)))


def test_a_restart_ends_the_episodes_that_wait_for_an_update(rollouts):
    """What is learned is the same as if they had run out of time."""
    half, rest = steps(rollouts[0], slice(0, 8)), steps(rollouts[2], slice(0, 8))
    cut = [column.copy() for column in half]
    cut[4][-1] = ~cut[3][-1]
    restarted, timed_out = make(), make()
    restarted.reward(*half)
    restarted.reset()
    timed_out.reward(*cut)
    for one in (restarted, timed_out):
        one.reward(*rest)
        one.update()
    np.testing.assert_array_equal(restarted.last_bonus, timed_out.last_bonus)
    jax.tree.map(np.testing.assert_array_equal, restarted._state.bonus.learner, timed_out._state.bonus.learner)


def test_an_episode_longer_than_the_memory_begins_anew_and_is_told_once():
    explorer = make(max_steps=3)
    obs = np.random.default_rng(0).integers(0, 9, (9, ENVS, 7, 7, 3)).astype(np.uint8)
    end = np.zeros((8, ENVS), bool)
    with pytest.warns(UserWarning, match="longer than max_steps = 3") as told:
        explorer.reward(obs[:-1], np.zeros((8, ENVS), int), obs[1:], end, end)
    assert len(told) == 1
    assert explorer.metrics["memory_filled"] <= 1


def test_a_saved_explorer_continues_to_the_bit(rollouts, tmp_path):
    explorer = make()
    explorer.reward(*steps(rollouts[0]))
    explorer.update()
    explorer.save(tmp_path / "saved")
    again = Explorer.load(tmp_path / "saved")
    for one in (explorer, again):
        one.reward(*steps(rollouts[1]))
        one.update()
    np.testing.assert_array_equal(again.last_bonus, explorer.last_bonus)
    jax.tree.map(np.testing.assert_array_equal, again._state, explorer._state)
    for one in (Explorer.load(tmp_path / "saved"), again):  # neither takes other episodes for its own
        with pytest.raises(etd.UserError, match="does not continue where it was: obs at step 0"):
            one.reward(*steps(rollouts[0]))
    again.reset()
    assert not np.asarray(again._state.bonus.memory.filled).any()


def test_distances_and_embeddings(rollouts):
    explorer = make(embedding=4)
    obs = np.asarray(rollouts[0].obs[:, 0])
    x, y = explorer.embed(obs[:3]), explorer.embed(obs[3:8])
    assert x.shape == (3, 4)
    np.testing.assert_allclose(explorer.distance(obs[:3], obs[3:8]), explorer.bonus.distance(x, y), rtol=1e-5)
    np.testing.assert_allclose(np.diagonal(explorer.distance(obs, obs)), 0, atol=1e-3)


# Spaces ----------------------------------------------------------------------------------------------------------


def test_images_with_channels_first_are_turned(rollouts):
    turned = spaces.Box(0, 255, (3, 7, 7), np.uint8)
    plain, first = make(), Explorer("etd", turned, SPACES[1], ENVS, max_steps=LONGEST, seed=5, **SMALL)
    assert first.spec == plain.spec
    obs, action, after, *ends = steps(rollouts[0])
    plain.reward(obs, action, after, *ends)
    first.reward(np.moveaxis(obs, -1, 2), action, np.moveaxis(after, -1, 2), *ends)
    np.testing.assert_array_equal(first.last_bonus, plain.last_bonus)


@pytest.mark.parametrize(
    ("shape", "read"),
    [
        ((7, 7, 9), (7, 7, 9)),  # three frames of MiniGrid: more channels than columns
        ((9, 7, 7), (7, 7, 9)),
        ((60, 80, 3), (60, 80, 3)),
        ((3, 60, 80), (60, 80, 3)),
        ((7, 9, 7), (7, 9, 7)),
        ((3, 3, 3), (3, 3, 3)),
        ((1, 1, 3), (3,)),  # too small for convolutions
        ((4, 84, 84, 3), (4 * 84 * 84 * 3,)),
    ],
)
def test_which_axis_holds_the_channels(shape, read):
    assert Interface.of(spaces.Box(0, 255, shape, np.uint8), SPACES[1]).spec(9).obs_shape == read


def test_pictures_that_are_read_as_vectors_are_mentioned():
    with pytest.warns(UserWarning, match="read as a vector of numbers as they are, up to 255; an image has three axes"):
        Explorer("count", spaces.Box(0, 255, (8, 8), np.uint8), SPACES[1], 2, max_steps=9)


def test_bounds_beyond_what_float32_can_scale_are_none():
    space = spaces.Box(-3.4e38, 3.4e38, (2,))
    interface = Interface.of(spaces.Box(-1, 1, (3,)), space)
    np.testing.assert_array_equal(interface.moves(np.ones((1, 4, 2)), 4), 1)


def test_short_floats_are_read(rollouts):
    box = spaces.Box(-1, 1, (3,))
    read = Interface.of(box, SPACES[1]).observations(jnp.full((2, 3), 0.5, jnp.bfloat16), "obs", 2)
    assert read.dtype == np.float32
    assert (read == 0.5).all()


def test_of_a_dict_the_image_is_used(rollouts):
    both = spaces.Dict({"image": SPACES[0], "mission": spaces.Text(10)})
    with pytest.warns(UserWarning, match="sees the part 'image'"):
        explorer = Explorer("etd", both, SPACES[1], ENVS, max_steps=LONGEST, seed=5, **SMALL)
    plain = make()
    obs, action, after, *ends = steps(rollouts[0])
    plain.reward(obs, action, after, *ends)
    explorer.reward({"image": obs, "mission": ["go"]}, action, {"image": after}, *ends)
    np.testing.assert_array_equal(explorer.last_bonus, plain.last_bonus)


@pytest.mark.parametrize(
    ("seen", "acts", "kind"),
    [
        (spaces.Box(-np.inf, np.inf, (3,)), spaces.Box(-2.0, 3.0, (2,)), "vector"),
        (
            spaces.Box(0, 9, (5,), np.int64),
            spaces.Box(np.array([0.0, -1.0]), np.array([1.0, 5.0]), dtype=np.float64),
            "vector",
        ),
        (spaces.Box(-1, 1, (2, 3)), spaces.Discrete(3, start=2), "vector"),
        pytest.param(
            spaces.Box(0, 255, (64, 64, 1), np.uint8),
            spaces.Box(-np.inf, np.inf, (1,)),
            "pixels",
            marks=pytest.mark.slow,
        ),
        pytest.param(spaces.Box(0.0, 1.0, (4, 64, 64)), spaces.Discrete(2), "pixels", marks=pytest.mark.slow),
    ],
)
def test_spaces_of_all_kinds_give_a_bonus(seen, acts, kind):
    explorer = Explorer("icm", seen, acts, 2, max_steps=9, features=8, latent=8, minibatch=4, epochs=1)
    assert explorer.spec.kind == kind
    seen.seed(0), acts.seed(0)
    obs = np.stack([[seen.sample() for _ in range(2)] for _ in range(5)])
    action = np.stack([[acts.sample() for _ in range(2)] for _ in range(4)])
    end = np.zeros((4, 2), bool)
    reward = explorer.reward(obs[:-1], action, obs[1:], end, end)
    assert np.isfinite(reward).all()
    assert np.isfinite(explorer.update()["model_loss"])


# Mistakes --------------------------------------------------------------------------------------------------------

REFUSED = [
    (("etd", spaces.Text(5), SPACES[1], 2), {}, "not supported; images and vectors"),
    (("etd", spaces.Discrete(5), SPACES[1], 2), {}, "not supported; images and vectors"),
    (("etd", spaces.Dict({"a": SPACES[0]}), SPACES[1], 2), {}, "a Dict of a; only its part 'image'"),
    (("etd", SPACES[0], spaces.MultiDiscrete([2, 3]), 2), {}, "Actions of the space"),
    (("etd", SPACES[0], spaces.MultiBinary(3), 2), {}, "Actions of the space"),
    (("etd", *SPACES, 0), {}, "num_envs is 0"),
    (("etd", *SPACES, 2.5), {}, "num_envs is 2.5"),
    (("etd", *SPACES, 2), {"max_steps": -1}, "max_steps is -1"),
    (("etd", *SPACES, 2), {"seed": 2**40}, "seed is"),
    (("edt", *SPACES, 2), {}, "Did you mean 'etd'"),
    (("etd", *SPACES, 2), {"epoch": 3}, "Did you mean 'epochs'"),
    (("etd", *SPACES, 2), {"epochs": "many"}, "epochs"),
    (("etd", *SPACES, 2), {"learning_rate": float("nan")}, "learning_rate = nan is out of range"),
    (("etd", *SPACES, 2), {"ending": "next"}, "never sees"),
    (("agac", *SPACES, 2), {}, "needs the policy's logits"),
    (("etd + agac", *SPACES, 2), {}, "needs the policy's logits"),
    (("etd", *SPACES, 2), {"mix": Mix(intrinsic=-1)}, "intrinsic = -1.0 is out of range"),
    (("etd", *SPACES, 2), {"mix": 3}, "mix is 3; it should be an etd.Mix"),
    (("etd", *SPACES, 2), {"mix": Mix}, "it should be an etd.Mix"),
    (("rnd", *SPACES, 2), {"source": "policy"}, "source='policy' needs the policy's features"),
    (("etd", spaces.Box(0, 1, (0, 7, 3)), SPACES[1], 2), {}, "not supported; images and vectors"),
    (("icm", SPACES[0], spaces.Box(-1, 1, (0,)), 2), {}, "Actions of the space"),
    (("etd", *SPACES, 2), {"max_steps": 10**9}, "max_steps = 1000000000"),
    (("etd", *SPACES, 2), {"max_steps": 2**31 - 1}, "max_steps = 2147483647"),
]


@pytest.mark.parametrize(("words", "more", "sentence"), REFUSED)
def test_an_explorer_that_cannot_be_is_refused(words, more, sentence):
    with pytest.raises(etd.UserError, match=sentence.replace("(", r"\(")):
        Explorer(*words, **{"max_steps": 9, **more})


def changed(columns: tuple, index: int, value: object) -> tuple:
    return (*columns[:index], value, *columns[index + 1 :])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: changed(c, 0, c[0][:, :2]), r"obs has the shape \[16, 2, 7, 7, 3\]; for 4 environments"),
        (lambda c: changed(c, 0, c[0].astype(float)), "obs has the type float64; the space says uint8"),
        (lambda c: changed(c, 2, c[2][:8]), "8 and 16 steps"),
        (lambda c: changed(c, 1, c[1] + 7), "action has values from"),
        (lambda c: changed(c, 1, c[1] + 0.5), "Discrete actions are whole numbers"),
        (lambda c: changed(c, 3, c[3] + 2.0), "terminated should be true or false"),
        (lambda c: changed(c, 4, np.zeros(3)), r"truncated has the shape \[3\]"),
        (lambda c: (*c, np.full((STEPS, ENVS), np.nan)), "extrinsic has values that are not finite"),
        (lambda c: (*c, np.full((STEPS, ENVS), "a")), "extrinsic has the type"),
        (lambda c: changed(c, 0, [[1, 2], [3]]), "obs cannot be read as an array"),
        (lambda c: changed(c, 1, jax.random.key(0)), "action cannot be read as an array"),
        (lambda c: changed(c, 1, c[1] + 0j), "Discrete actions are whole numbers"),
        (lambda c: (*c, np.full((STEPS, ENVS), 1j)), "extrinsic has the type complex128; it should be real numbers"),
        (lambda c: changed(c, 0, np.concatenate([c[0][1:], c[0][:1]])), "does not continue where it was"),
    ],
)
def test_what_cannot_be_rewarded_is_refused_and_changes_nothing(change, sentence, rollouts):
    explorer, untouched = make(), make()
    with pytest.raises(etd.UserError, match=sentence):
        explorer.reward(*change(steps(rollouts[0])))
    for one in (explorer, untouched):
        one.reward(*steps(rollouts[0]))
    jax.tree.map(np.testing.assert_array_equal, explorer._state, untouched._state)


def test_a_gap_between_calls_is_refused(rollouts):
    explorer = make()
    explorer.reward(*steps(rollouts[0]))
    with pytest.raises(etd.UserError, match=r"Environment \d does not continue where it was: obs at step 0"):
        explorer.reward(*steps(rollouts[2]))
    explorer.reset()
    explorer.reward(*steps(rollouts[2]))


def test_order_of_calls(rollouts, tmp_path):
    explorer = make(minibatch=48)
    with pytest.raises(etd.UserError, match="nothing to learn from"):
        explorer.update()
    explorer.reward(*steps(rollouts[0]))
    with pytest.raises(etd.UserError, match=r"minibatch = 48 does not divide .* such as 32"):
        explorer.update()
    with pytest.raises(etd.UserError, match="call update"):
        explorer.save(tmp_path / "explorer")
    assert not (tmp_path / "explorer").exists()


def test_bonuses_without_a_model_have_no_embedding():
    with pytest.raises(etd.UserError, match="has no embedding"):
        make("count").embed(np.zeros((2, 7, 7, 3), np.uint8))
    with pytest.raises(etd.UserError, match="learns no distance"):
        make("rnd").distance(np.zeros((2, 7, 7, 3), np.uint8), np.zeros((2, 7, 7, 3), np.uint8))


@pytest.mark.parametrize(
    "given", [np.float32(3), None, np.zeros((0, 7, 7, 3), np.uint8), np.zeros((7, 7, 3), np.uint8)]
)
def test_what_is_no_batch_of_observations_has_no_embedding(given):
    both = spaces.Dict({"image": SPACES[0]})
    with pytest.warns(UserWarning, match="sees the part"):
        parts = Explorer("etd", both, SPACES[1], ENVS, max_steps=LONGEST, **SMALL)
    for explorer, wrapped in ((make(), given), (parts, {"image": given})):
        with pytest.raises(etd.UserError, match=r"obs has the shape .* it should be \[B, 7, 7, 3\]"):
            explorer.embed(wrapped)
    for wrapped in (given, {"mission": given}):
        with pytest.raises(etd.UserError, match="obs should be a dict with the part 'image'"):
            parts.embed(wrapped)


@pytest.mark.parametrize(("name", "sentence"), [("rnd", "Make it with source='own'"), ("agac", "policy's logits")])
def test_a_rollout_without_what_a_bonus_reads_is_refused(name, sentence, rollouts):
    bonus = BONUSES[name](**small(name))
    rollout = Rollout.of(*(jnp.asarray(one) for one in (*steps(rollouts[0])[:3], rollouts[0].step.reward)), *ENDLESS)
    spec = make("count").spec
    with pytest.raises(etd.UserError, match=sentence):
        jax.eval_shape(lambda key: bonus.score(bonus.init(key, spec, ENVS), rollout, key), jax.random.key(0))


@pytest.mark.parametrize("call", [lambda: Explorer.load(None), lambda: Explorer.load(3), lambda: make().save(None)])
def test_what_is_no_path_is_refused(call):
    with pytest.raises(etd.UserError, match="is not a path"):
        call()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda f: (f / "explorer.json").unlink(), "holds no explorer"),
        (lambda f: (f / "explorer.json").write_text("[]"), "holds no explorer"),
        (lambda f: edit(f, format=99), "another version"),
        (lambda f: edit(f, num_envs=2**60), "num_envs is"),
        (lambda f: edit(f, bonus={"class": "os:system"}), "os:system"),
        (lambda f: edit(f, bonus={"class": "etd", "epochs": -4}), "epochs = -4 is out of range"),
        (lambda f: edit(f, format=True), "another version"),
        (lambda f: edit(f, interface={"obs_shape": [7]}), "holds no explorer"),
        *[
            (lambda f, name=name, value=value: describe(f, name, value), "that cannot exist")
            for name, value in [
                ("obs_shape", 3),
                ("obs_shape", [10**400]),
                ("obs_shape", [-1, -3]),
                ("obs_shape", []),
                ("obs_high", 10**400),
                ("obs_high", 0),
                ("obs_dtype", 7),
                ("low", None),
                ("action_shape", [-1, -1]),
            ]
        ],
        (lambda f: edit(f, max_steps=2 * 10**7), "cannot be used"),
        (lambda f: edit(f, num_envs=5), "cannot be used"),
        (lambda f: (f / "state.npz").unlink(), "cannot be used"),
        (lambda f: (f / "state.npz").write_bytes(b"PK"), "cannot be used"),
    ],
)
def test_a_folder_that_is_no_explorer_is_refused(damage, sentence, tmp_path, saved):
    folder = tmp_path / "explorer"
    folder.mkdir()
    for file in saved.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    damage(folder)
    with pytest.raises(etd.UserError, match=sentence):
        Explorer.load(folder)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explorer")
    make().save(folder)
    return folder


def describe(folder: Path, name: str, value: object) -> None:
    interface = json.loads((folder / "explorer.json").read_text())["interface"]
    edit(folder, interface={**interface, name: value})


def edit(folder: Path, **fields: object) -> None:
    file = folder / "explorer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
