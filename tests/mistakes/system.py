"""What the system refuses, and what users' own modules do."""

from __future__ import annotations

from tests.mistakes.children import Row
from tests.mistakes.commands import PAIR

DENIED = "cannot be written: permission denied"
NOBODY = [
    Row(words, says, when="nobody", id=f"{words} (as nobody)")
    for words, says in (
        ("train --out new", f"new {DENIED}"),
        ("train --out empty/new", f"empty/new {DENIED}"),
        ("train", f"runs/.* {DENIED}"),
        ("train --out empty", f"empty.* {DENIED}"),
        ("resume run --steps 4096", f"run.* {DENIED}"),
        ("report run", f"run/report.html {DENIED}"),
        ("report run --out page.html", f"page.html {DENIED}"),
        ("watch run", f"run/episode.gif {DENIED}"),
        ("distance", f"runs/distance {DENIED}"),
        ("distance --maze file", "file cannot be read: permission denied"),
        (f"compare {PAIR}", f"runs/compare {DENIED}"),
        (f"compare {PAIR} --out empty", f"empty {DENIED}"),
        (f"compare {PAIR} --keep empty", f"{DENIED}"),
        ("reproduce bonuses", f"runs/bonuses {DENIED}"),
        ("bench training", f"bench-training.json {DENIED}"),
        ("bench seeds", f"bench-seeds.json {DENIED}"),
        ("bench env", f"bench-env.json {DENIED}"),
        ("bench bonus", f"bench-bonus.json {DENIED}"),
        ("bench host", f"bench-host.json {DENIED}"),
        ("bench parity", f"bench-parity.json {DENIED}"),
        ("etd.train(out='new')", f"new {DENIED}"),
    )
]


def full(words: str, file: str, when: str) -> Row:
    says = f"{file}.* cannot be written: the (disk is full|system allows)"
    return Row(words, says, when=when, leaves=when == "full", id=f"{words} ({when})")


FULL = [
    *(
        full(words, file, when)
        for when in ("full", "limited")
        for words, file in (
            ("train --out full/run", "full/run/run.json"),
            ("report run --out full/page.html", "full/page"),
            ("etd.train(out='full/a/b/c')", "full/a/b/c/run.json"),
        )
    ),
    full("train --out full", "full/run.json", "full"),
    *(
        Row(words, "The output cannot be written: the disk is full", when="deaf", id=f"{words} > /dev/full")
        for words in ("list", "show minigrid-etd", f"compare {PAIR} --dry-run")
    ),
    Row("show minigrid-etd", "^$", status=141, when="closed", id="show minigrid-etd | true"),
    full("train --out run --overwrite", "run/run.json", "limited"),
]

VARIABLES = [
    Row("train --out new", "ETD_SAVE_EVERY is 'abc'; it must be a number of seconds", env={"ETD_SAVE_EVERY": "abc"}),
    Row("resume run", "ETD_SAVE_EVERY is '-1'", env={"ETD_SAVE_EVERY": "-1"}, id="ETD_SAVE_EVERY=-1"),
    Row("resume run", "ETD_SAVE_EVERY is 'nan'", env={"ETD_SAVE_EVERY": "nan"}, id="ETD_SAVE_EVERY=nan"),
    *(
        Row(words, "JAX cannot start: .*bogus.*JAX_PLATFORMS", env={"JAX_PLATFORMS": "bogus"}, id=f"{words} on bogus")
        for words in ("train --out new", "evaluate run", "distance", f"compare {PAIR} --dry-run")
    ),
]

SPEC = "etd.EnvSpec('line', (1,), 'float32', 1.0, {action}, max_steps=9, shortest=1, kind='vector')"
ENV = """
import etd
import jax.numpy as jnp
class Line:
    spec = {spec}
    def reset(self, key):
        {reset}
        return jnp.int32(0), jnp.zeros(1)
    def step(self, state, action, key):
        end = state + 1 == 9
        return state + 1, etd.Transition(jnp.zeros(1), jnp.float32(0), jnp.zeros((), bool), end)
"""
HOST = """
import gymnasium, numpy
from gymnasium import spaces
class Walk(gymnasium.Env):
    max_steps = 9
    observation_space = {seen}
    action_space = {acts}
    def __init__(self):
        {begin}
"""


def line(action: str = "etd.Discrete(2)", reset: str = "", spec: str = SPEC) -> dict[str, str]:
    return {"mine.py": ENV.format(spec=spec.format(action=action), reset=reset or "pass")}


def walk(
    acts: str = "spaces.Discrete(2)", seen: str = "spaces.Box(0, 1, (2,), 'float32')", begin: str = "pass"
) -> dict[str, str]:
    return {"mine.py": HOST.format(acts=acts, seen=seen, begin=begin)}


def mine(says: str, files: dict[str, str], kind: str = "Line", **more: bool | int | str) -> Row:
    return Row(f"train --env mine:{kind} --bonus none --out new", says, files=files, **more)  # type: ignore[arg-type]


MODULES = [
    mine("Importing mine ended the process .exit status 3", {"mine.py": "raise SystemExit(3)"}, id="exits"),
    mine("Importing mine ended the process", {"mine.py": "import sys; sys.exit()"}, id="exits without a status"),
    mine("mine has no 'Line'", {"mine.py": ""}, id="an empty module"),
    mine("5 is not an environment", {"mine.py": "Line = 5"}, id="a number"),
    mine("ZeroDivisionError", {"mine.py": "1 / 0"}, status=1, own=True, id="raises"),
    mine("SyntaxError", {"mine.py": "def"}, status=1, own=True, id="does not parse"),
    mine("No module named 'absent'", {"mine.py": "import absent"}, status=1, own=True, id="lacks a package"),
    mine("KeyError", line(reset="raise KeyError('mine')"), status=1, own=True, id="reset raises"),
    mine("FileNotFoundError", line(reset="open('absent.txt')"), status=1, own=True, id="reset lacks a file"),
    mine("mine ended the process .exit status 4", line(reset="raise SystemExit(4)"), id="reset exits"),
    mine("has no actions: its spec says Discrete.n=0.", line("etd.Discrete(0)"), id="Discrete(0)"),
    mine("has no actions", line("etd.Discrete(-1)"), id="Discrete(-1)"),
    mine("has no actions|must be", line("etd.Discrete('two')"), id="Discrete('two')"),
    mine("has no actions", line("etd.Box(0, -1.0, 1.0)"), id="Box of size 0"),
    mine("from 1.0 to -1.0|low", line("etd.Box(2, 1.0, -1.0)"), id="Box upside down"),
    mine("finite", line("etd.Box(2, -float('inf'), float('inf'))"), id="Box without bounds"),
    mine("spec.action is 4; it must be etd.Discrete or etd.Box", line("4"), id="action 4"),
    mine("spec is dict, not an etd.EnvSpec", line(spec="{{}}"), id="spec is a dict"),
    mine("spec says float32.0.|obs_shape", line(spec=SPEC.replace("(1,)", "(0,)")), id="no observation"),
    mine("obs_shape|spec says", line(spec=SPEC.replace("(1,)", "(-1,)")), id="a negative shape"),
    mine("episodes take 1 to 0 steps", line(spec=SPEC.replace("=9", "=0")), id="no steps"),
    mine("kind", line(spec=SPEC.replace("'vector'", "'sound'")), id="another kind"),
    mine("obs_dtype|float33", line(spec=SPEC.replace("'float32'", "'float33'")), id="another dtype"),
    mine("only Discrete actions and vectors", walk("spaces.Text(5)"), "Walk", id="actions of text"),
    mine("only Discrete actions", walk("spaces.Box(-1, 1, (0,))"), "Walk", id="actions of size 0"),
    mine("only Discrete actions", walk("spaces.Box(-numpy.inf, 1, (2,))"), "Walk", id="actions without bounds"),
    mine("have to be positive", walk("spaces.Discrete(0)"), "Walk", status=1, own=True, id="gymnasium's Discrete(0)"),
    mine("only images .* and vectors", walk(seen="spaces.Discrete(3)"), "Walk", id="observations are numbers"),
    mine("ended the process .exit status 5", walk(begin="raise SystemExit(5)"), "Walk", id="constructor exits"),
    mine("RuntimeError: mine", walk(begin="raise RuntimeError('mine')"), "Walk", status=1, own=True, id="constructor"),
]

MEMORY = [
    Row(words, rf"needs .* of memory or more; there are .*Lower {path}, now \d+ \({path}=\d+ would fit", id=words)
    for words, path in (
        ("train --set ppo.features=1000000000", "ppo.features"),
        ("etd.train(fields={'bonus.latent': 10**9})", "bonus.latent"),
        ("train --set ppo.latent=2000000000", "ppo.latent"),
        ("train --set bonus.features=2147483647", "bonus.features"),
        ("train --set num_envs=4194303 --set ppo.minibatch=4194303 --set bonus.minibatch=4194303", "num_envs"),
        ("train --seeds 2000000000", "seeds"),
        ("train --bonus ec --set bonus.capacity=2000000000", "bonus.capacity"),
        ("train --set rollout_steps=134217216", "rollout_steps"),
        ("bench training --seeds 2000000000", "seeds"),
        ("bench bonus --seeds 2000000000", "seeds"),
        ("check --set num_envs=16777215", "num_envs"),
    )
]

ROWS = [*NOBODY, *FULL, *VARIABLES, *MODULES, *MEMORY[:2]]
SLOW = [*MEMORY[2:], full("resume run --steps 4096", "run/checkpoints/.*npz", "limited")]
"""Those that estimate for seconds, or train before they fail."""
