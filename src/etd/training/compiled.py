"""The seed axis, devices and compilation. Only this file and ``host_collect``, which has one pool of environments for
all seeds, deal with more than one seed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from etd.core.keys import named
from etd.core.types import Array, Key, Metrics, PyTree, Rollout, Transition
from etd.envs.host.env import HostEnv
from etd.nets.heads import action_noise
from etd.nets.model import Learner
from etd.training import learn
from etd.training.collect import act, first_hidden
from etd.training.evaluate import Episodes, Outcome, outcome, play
from etd.training.experiment import Experiment
from etd.training.learn import TrainState

GRAPHS: dict[str, Any] = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE",
    "xla_gpu_graph_min_graph_size": 1,
}
"""Loops as CUDA graphs: most kernels here run for less time than it takes to launch one."""
FIXED_KERNELS: dict[str, Any] = {"xla_gpu_deterministic_ops": True}
"""XLA otherwise chooses among kernels by timing them, and so differently from one compilation to the next."""
CODE: dict[str, Any] = {"xla_backend_optimization_level": 1}
"""On a CPU this code is as fast as that of the default, 3, and takes a sixth less time to compile."""
if jax.__version_info__ < (0, 11):  # which lacks the option
    CODE["xla_cpu_use_fusion_emitters"] = False  # a third less again: 13 s of a core instead of 19 for an iteration
MANY_SEEDS = 16
"""From here on cuBLAS's fixed kernels are faster than Triton's (results/exact)."""


@lru_cache(maxsize=8)
def make_init(experiment: Experiment) -> Program:
    """A compiled function without arguments that returns the first state of all seeds, leaves [S, ...]."""
    return _init(experiment, partial(learn.init, experiment, experiment.env.make()))


@lru_cache(maxsize=8)
def make_step(experiment: Experiment) -> Callable[[TrainState], tuple[TrainState, Metrics]]:
    """A compiled function: the state after one iteration, and its metrics [S]. It consumes its input.

    One iteration per call, not a scan over many: XLA compiles loops of different lengths differently, which changes
    the last bits, and a resumed run must continue exactly wherever it stopped. The cost of the call is negligible.
    """
    env, place = experiment.env.make(), _place(experiment.seeds)
    step = Program(experiment, over_seeds(partial(learn.iterate, experiment, env)), donate_argnums=0)
    return step if place is None else lambda state: step(_moved(state, place))


@lru_cache(maxsize=8)
def make_collector(experiment: Experiment) -> Callable[[TrainState], tuple[TrainState, Rollout]]:
    """A compiled function: the state after acting for one rollout without learning, and the rollout [S, T, N, ...]."""
    env = experiment.env.make()

    def collect(state: TrainState) -> tuple[TrainState, Rollout]:
        envs, hidden, rollout, _ = learn.act(experiment, env, state)
        return state._replace(envs=envs, hidden=hidden, iteration=state.iteration + 1), rollout

    return Program(experiment, over_seeds(collect))


def _init(experiment: Experiment, one: Callable[[Key], TrainState]) -> Program:
    """The first state of all seeds, where ``one`` maps a seed's key to its first state."""

    def begin() -> TrainState:
        seeds = experiment.seed + jnp.arange(experiment.seeds)
        return _shared(jax.vmap(lambda seed: one(jax.random.key(seed))))(seeds)

    return Program(experiment, begin)


# The parts of an iteration with environments on the host.


@lru_cache(maxsize=8)
def make_host_init(experiment: Experiment, env: HostEnv) -> Program:
    """Like ``make_init``, for host environments that have not started yet."""
    return _init(experiment, lambda key: learn.assemble(experiment, env.spec, env.begin(experiment.num_envs), key))


@lru_cache(maxsize=8)
def make_noise(experiment: Experiment) -> Callable[[TrainState], Array]:
    """A compiled function: the action noise of an iteration, [S, T, N, ...]."""

    def draw(state: TrainState) -> Array:
        lead = (experiment.rollout_steps, experiment.num_envs)
        return action_noise(named(learn.iteration_key(state), "action"), experiment.env.spec.action, lead)

    return jax.jit(over_seeds(draw))


@lru_cache(maxsize=8)
def make_play_noise(experiment: Experiment, steps: int, num_envs: int, greedy: bool) -> Callable[[Key, int], Array]:
    """A compiled function: the action noise of a chunk of an evaluation, [S, steps, num_envs, ...]."""

    def draw(key: Key, part: Array) -> Array:
        drawn = action_noise(named(key, "play", part), experiment.env.spec.action, (steps, num_envs))
        return jnp.zeros_like(drawn) if greedy else drawn

    return jax.jit(lambda keys, part: jax.vmap(lambda key: draw(key, part))(keys))


@lru_cache(maxsize=8)
def make_episode_scorer(experiment: Experiment) -> Callable[[TrainState, int, Array, Array, Transition], Array]:
    """A compiled function of one episode played by the seed at an index: observations [T+1, ...], actions [T, ...] and
    transitions [T, ...] to the bonus [T], before standardising, with a memory that is empty at the start."""
    bonus = experiment.bonus

    def appraise(state: TrainState, index: int, obs: Array, action: Array, step: Transition) -> Array:
        learner = jax.tree.map(lambda leaf: leaf[index], state.learner)
        net = learner.policy.net()

        def look(hidden: Array, obs: Array) -> tuple[Array, Any]:
            out = net(obs[None], hidden)
            return out.hidden, (hidden, out)

        _, (hidden, out) = jax.lax.scan(look, first_hidden(experiment.ppo, 1), obs)
        logits = out.policy.logits[:-1]
        step = jax.tree.map(lambda leaf: leaf[:, None], step)
        said = jax.vmap(type(out.policy).log_prob)(jax.tree.map(lambda leaf: leaf[:-1], out.policy), action[:, None])
        rollout = Rollout(obs[:, None], step, action[:, None], said, out.value, hidden, out.features, logits)
        fresh = bonus.init(named(state.key[index], "memory"), experiment.env.spec, 1)
        scored = bonus.score(learner.bonus._replace(memory=fresh.memory), rollout, named(state.key[index], "score"))[1]
        return scored.bonus[:, 0]

    return Program(experiment, appraise)


@lru_cache(maxsize=8)
def make_actor(experiment: Experiment) -> Callable[[Learner, Array, Array, Array], tuple[dict[str, Array], Array]]:
    """A compiled function of policies [S] and of observations, recurrent states and noise [S, G, ...] for any number G
    of environments: the new fields of one step's rows, and the recurrent states after it."""

    def look(policy: Learner, obs: Array, hidden: Array, noise: Array) -> tuple[dict[str, Array], Array]:
        row, after = act(policy.net(), obs, hidden, noise, experiment.bonus.needs)
        return {name: value for name, value in row.items() if name not in ("obs", "hidden")}, after

    return Program(experiment, over_seeds(look))


@lru_cache(maxsize=8)
def make_update(experiment: Experiment) -> Callable[[TrainState, PyTree, PyTree, PyTree], tuple[TrainState, Metrics]]:
    """A compiled ``learn.learn_from_rollout`` for all seeds. It consumes the state."""
    work = partial(learn.learn_from_rollout, experiment, experiment.env.spec)
    place = _place(experiment.seeds)
    step = Program(experiment, over_seeds(work), donate_argnums=0)
    return step if place is None else lambda state, *rest: step(_moved(state, place), *rest)


@lru_cache(maxsize=8)
def make_player(experiment: Experiment, episodes: int, greedy: bool) -> Callable[[TrainState, int, Key], Episodes]:
    """A compiled function that plays ``episodes`` with the policy of the seed at an index."""
    return _of_one_seed(experiment, lambda env, learner, key: play(experiment, env, learner, episodes, key, greedy))


@lru_cache(maxsize=8)
def make_evaluator(experiment: Experiment, episodes: int, greedy: bool) -> Callable[[TrainState, int, Key], Outcome]:
    """A compiled function: the outcome of ``episodes`` with the policy of the seed at an index."""
    return _of_one_seed(experiment, lambda env, learner, key: outcome(experiment, env, learner, episodes, key, greedy))


def _of_one_seed(experiment: Experiment, work: Callable) -> Callable:
    env = experiment.env.make()

    def run(state: TrainState, index: int, key: Key) -> Any:
        return work(env, jax.tree.map(lambda leaf: leaf[index], state.learner), key)

    return Program(experiment, run)


def over_seeds(function: Callable) -> Callable:
    """``function`` of one seed as a function of all, leaves [S, ...].

    An accelerator runs all seeds as one batch. One seed already saturates a CPU, and batched matrix products are slower
    there, so the seeds take turns. Several devices take equal shares of the seeds.
    """
    if jax.default_backend() == "cpu":
        return _shared(lambda *args: jax.lax.map(lambda one: function(*one), args))
    return _shared(jax.vmap(function))


class Program:
    """A function, compiled as the experiment asks: at its precision and, if it is deterministic, to the same kernels
    every time."""

    def __init__(self, experiment: Experiment, function: Callable, **jit: Any) -> None:
        self.experiment = experiment
        self.jitted = jax.jit(function, compiler_options=options(experiment), **jit)

    def __call__(self, *args: PyTree) -> Any:
        with precision(self.experiment):
            return self.jitted(*args)

    def shapes(self, *args: PyTree) -> Any:
        """Shapes and types of its result, without computing anything."""
        return self.jitted.eval_shape(*args)


def precision(experiment: Experiment) -> AbstractContextManager:
    """A context in which matrix products are traced at the experiment's precision.

    A CPU always computes in float32; requesting that would only keep XLA from using its fast, threaded products.
    """
    if jax.default_backend() == "cpu":
        return nullcontext()
    return jax.default_matmul_precision(experiment.precision)


def options(experiment: Experiment) -> dict[str, Any] | None:
    """XLA's options for the experiment's programs."""
    if jax.default_backend() == "cpu":
        return None if jax.config.read("jax_disable_most_optimizations") else CODE
    if jax.default_backend() != "gpu":
        return None
    if not experiment.deterministic:
        return GRAPHS
    return {**GRAPHS, **FIXED_KERNELS, "xla_gpu_enable_triton_gemm": experiment.seeds < MANY_SEEDS}


def devices(seeds: int) -> int:
    """How many local devices share the seeds: the largest number that divides them."""
    return max(n for n in range(1, jax.local_device_count() + 1) if seeds % n == 0)


def _place(seeds: int) -> NamedSharding | None:
    """The sharding of the seeds over these devices. None if there is one."""
    count = devices(seeds)
    return NamedSharding(Mesh(jax.local_devices()[:count], ("seed",)), PartitionSpec("seed")) if count > 1 else None


def _shared(function: Callable) -> Callable:
    """``function`` of some seeds as a function of all: each device computes its share independently."""

    def run(*args: PyTree) -> PyTree:
        place = _place(len(jax.tree.leaves(args)[0]))
        if place is None:
            return function(*args)
        # Seeds never communicate, so there is nothing to gain from checking which values vary over devices.
        share = jax.shard_map(function, mesh=place.mesh, in_specs=place.spec, out_specs=place.spec, check_vma=False)
        return share(*args)

    return run


def _moved(state: TrainState, place: NamedSharding) -> TrainState:
    """A loaded state is on one device. Moving it first avoids compiling another program; the old copy is freed."""
    if len(state.key.devices()) > 1:
        return state
    moved = jax.device_put(state, place)
    jax.tree.map(lambda leaf: leaf.delete(), state)
    return moved
