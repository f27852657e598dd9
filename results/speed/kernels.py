"""What the loops of training launch on an H200, counted without one: kernels, and bytes that they read and write.

    pip install 'jax[cuda13]' && python results/speed/kernels.py

XLA compiles for the device described in ``h200-target.txt``. It cannot time kernels there, so the products may be
others than on the device itself. Prints every loop and writes ``h200-kernels.json``, which keeps its counts "before".
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from etd.training import compiled, learn, presets
from etd.training.experiment import Experiment

HERE = Path(__file__).parent
CASES = [(1, "float32"), (32, "tensorfloat32"), (32, "bfloat16")]
FREE = {"parameter", "get-tuple-element", "tuple", "constant", "bitcast", "after-all"}
"""Instructions that launch nothing."""


def loops(experiment: Experiment) -> dict[str, Callable[[Any], Any]]:
    """Functions of a seed's state and rollout, each with one long loop."""
    env, bonus, ppo = experiment.env.make(), experiment.bonus, experiment.ppo
    return {
        "an update of the model": lambda state, rollout: bonus.improve(state.learner.bonus, rollout, (), state.key),
        "an update of the policy": lambda state, rollout: ppo.improve(
            state.learner.policy, state.learner.advantage_moments, rollout, rollout.step.reward, state.key
        ),
        "a step of acting": lambda state, _: learn.act(experiment, env, state),
    }


def given(experiment: Experiment) -> tuple[Any, Any]:
    """Shapes of a seed's state and rollout."""
    env = experiment.env.make()
    state = jax.eval_shape(partial(learn.init, experiment, env), jax.random.key(0))
    return state, jax.eval_shape(lambda state: learn.act(experiment, env, state)[2], state)


def program(function: Callable, args: Any, seeds: int, place: SingleDeviceSharding) -> str:
    """The optimised program of all seeds."""
    args = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((seeds, *leaf.shape), leaf.dtype, sharding=place), args)
    whole = jax.jit(jax.vmap(function), out_shardings=place, compiler_options=compiled.GRAPHS)
    return str(whole.lower(*args).compile().as_text())


def count(text: str) -> tuple[int, float]:
    """Kernels in the body of the longest loop, and the megabytes they read and write."""
    bodies: dict[str, list[str]] = {}
    for line in text.splitlines():
        if found := re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{", line):
            lines = bodies.setdefault(found[1], [])
        elif " = " in line and bodies:
            lines.append(line.strip())
    names = re.findall(r" while\(.*body=%?([\w.\-]+)", text)
    return max(map(_count, (bodies[name] for name in names)))


def _count(lines: list[str]) -> tuple[int, float]:
    found = [re.match(r"(?:ROOT )?%?([\w.\-]+) = (\(?.*?\)?) ([\w\-]+)\((.*?)\)", line) for line in lines]
    shapes = {one[1]: _bytes(one[2]) for one in found if one}
    kernels = [one for one in found if one and one[3] not in FREE]
    read = (shapes.get(name, 0) for one in kernels for name in re.findall(r"%([\w.\-]+)", one[4]))
    return len(kernels), (sum(read) + sum(shapes[one[1]] for one in kernels)) / 1e6


def _bytes(shape: str) -> int:
    return sum(_arrays(shape))


def _arrays(shape: str) -> Iterator[int]:
    for kind, sides in re.findall(r"(pred|bf16|[suf]\d+)\[([\d,]*)\]", shape):
        size = 1 if kind == "pred" else int(re.sub(r"\D", "", kind)) // 8
        for side in filter(None, sides.split(",")):
            size *= int(side)
        yield size


def main() -> None:
    target = (HERE / "h200-target.txt").read_text()
    device = topologies.get_topology_desc("1x1x1", "cuda", topology="1x1x1", target_config=target).devices[0]
    jax.default_backend = lambda: "gpu"  # which etd asks, to compile what it would there
    rows = []
    for seeds, precision in CASES:
        experiment = replace(presets.choose("MiniGrid-DoorKey-8x8-v0", "etd"), seeds=seeds, precision=precision)
        for name, function in loops(experiment).items():
            with compiled.precision(experiment):
                text = program(function, given(experiment), seeds, SingleDeviceSharding(device))
            kernels, megabytes = count(text)
            row = {"loop": name, "seeds": seeds, "precision": precision, "kernels": kernels}
            if name != "a step of acting":  # which writes rows of long arrays, counted here as the whole arrays
                row["megabytes"] = round(megabytes, 1)
            rows.append(row)
            print(*row.values(), flush=True)
    out = HERE / "h200-kernels.json"
    before = json.loads(out.read_text())["before"]
    out.write_text(json.dumps({"jax": jax.__version__, "before": before, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
