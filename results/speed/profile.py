"""``python results/speed/profile.py --seeds 32 --precision tensorfloat32``: where in etd a GPU spends its time.

Trains three iterations, the last two under JAX's profiler, and adds up the kernels by the line that they were compiled
from: the innermost line of etd. CUDA graphs are off, because kernels in a graph do not say where they come from;
``--graphs`` leaves them on and adds up by the kernels' names. Time between kernels is what is missing from the whole.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jax
from jax.profiler import ProfileData

import etd
from etd.training import compiled, presets
from etd.training.validate import check

ITERATIONS = 2
HOME = f"{Path(etd.__file__).parent}/"


def lines_of(program: str) -> dict[str, str]:
    """The line of etd behind each instruction of a compiled program's text."""

    def table(head: str) -> dict[str, str]:
        found = re.search(rf"^{head}\n((?:\d+ .*\n)+)", program, re.MULTILINE)
        return dict(line.split(" ", 1) for line in found[1].splitlines()) if found else {}

    def number(name: str, words: str) -> str:
        found = re.search(rf"{name}=(\d+)", words)
        return found[1] if found else ""

    names, functions = table("FileNames"), table("FunctionNames")
    places, frames = table("FileLocations"), table("StackFrames")

    def line(frame: str) -> str:
        while frame in frames:
            place = places[number("file_location_id", frames[frame])]
            file = names[number("file_name_id", place)].strip('"')
            if file.startswith(HOME):
                function = functions[number("function_name_id", place)].strip('"')
                return f"{file.removeprefix(HOME)}:{number('line', place)} {function}"
            parent = number("parent_frame_id", frames[frame])
            if parent == frame:
                break
            frame = parent
        return "elsewhere"

    said = re.findall(r"^ *(?:ROOT )?%?([\w.-]+) = .*stack_frame_id=(\d+)", program, re.MULTILINE)
    return {instruction: line(frame) for instruction, frame in said}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="MiniGrid-DoorKey-8x8-v0")
    parser.add_argument("--bonus", default="etd")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--graphs", action="store_true", help="leave CUDA graphs on")
    parser.add_argument("--program", type=Path, help="also keep the compiled program's text here")
    parser.add_argument("--out", type=Path, default=Path("profile.json"))
    given = parser.parse_args()
    if not given.graphs:
        compiled.GRAPHS.clear()
    chosen = presets.choose(given.env, given.bonus)
    experiment = check(replace(chosen, seeds=given.seeds, precision=given.precision))
    state = compiled.make_init(experiment)()
    with compiled.precision(experiment):
        step = compiled.make_step(experiment).jitted.lower(state).compile()
    program = step.as_text()
    if given.program:
        given.program.write_text(program)
    state, _ = jax.block_until_ready(step(state))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            began = time.perf_counter()
            for _ in range(ITERATIONS):
                state, _ = jax.block_until_ready(step(state))
            whole = (time.perf_counter() - began) / ITERATIONS
        (file,) = Path(folder).rglob("*.xplane.pb")
        profile = ProfileData.from_file(str(file))
    lines, spent, count = lines_of(program), Counter(), Counter()
    kernels, launched = Counter(), Counter()
    for plane in profile.planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for stream in plane.lines:
            if "Stream" not in stream.name:
                continue
            for event in stream.events:
                source = str(dict(event.stats).get("hlo_op", ""))
                where, seconds = lines.get(source, source or "unnamed"), event.duration_ns / 1e9 / ITERATIONS
                spent[where] += seconds
                count[where] += 1
                kernels[event.name] += seconds
                launched[event.name] += 1

    def rows(seconds: Counter, calls: Counter) -> list[dict]:
        return [
            {
                "what": what,
                "ms": round(value * 1e3, 3),
                "share": round(value / whole, 4),
                "calls": calls[what] // ITERATIONS,
            }
            for what, value in seconds.most_common(60)
        ]

    found = {
        "env": given.env,
        "bonus": given.bonus,
        "seeds": given.seeds,
        "precision": given.precision,
        "graphs": given.graphs,
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "iteration_ms": round(whole * 1e3, 2),
        "kernels_ms": round(sum(kernels.values()) * 1e3, 2),
        "launches": sum(launched.values()) // ITERATIONS,
        "lines": rows(spent, count),
        "kernels": rows(kernels, launched),
    }
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{found['iteration_ms']} ms per iteration, {found['kernels_ms']} in {found['launches']} kernels")
    for row in found["lines"][:30]:
        print(f"{row['ms']:9.2f} ms {row['share']:6.1%} {row['calls']:7} {row['what']}")


if __name__ == "__main__":
    main()
