"""The paper's figures, as the runs they are made of.

An entry is one method on one task; ``etd reproduce`` trains the entries of a figure and plots it. The steps are where
the paper's curves end, if it says so. The noisy levels besides DoorKey-16x16 are our choice: the paper plots four and
names none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from etd.core.errors import unknown
from etd.lab.compare.plan import Entry
from etd.training import presets
from etd.training.config import override

TASKS: dict[str, tuple[str, int]] = {
    "DoorKey-8x8": ("MiniGrid-DoorKey-8x8-v0", 500_000),
    "MultiRoom-N6": ("MiniGrid-MultiRoom-N6-v0", 2_000_000),
    "DoorKey-16x16": ("MiniGrid-DoorKey-16x16-v0", 3_000_000),
    "KeyCorridorS6R3": ("MiniGrid-KeyCorridorS6R3-v0", 5_000_000),
    "ObstructedMaze-2Dlh": ("MiniGrid-ObstructedMaze-2Dlh-v0", 5_000_000),
    "ObstructedMaze-2Dlhb": ("MiniGrid-ObstructedMaze-2Dlhb-v0", 10_000_000),
    "ObstructedMaze-1Q": ("MiniGrid-ObstructedMaze-1Q-v0", 10_000_000),
    "ObstructedMaze-2Q": ("MiniGrid-ObstructedMaze-2Q-Centre-v0", 20_000_000),
    "ObstructedMaze-Full": ("MiniGrid-ObstructedMaze-Full-v0", 20_000_000),
    "ObstructedMaze-Full-v1": ("MiniGrid-ObstructedMaze-Full-v1", 20_000_000),
    "Crafter": ("Crafter-v0", 1_000_000),
    "Crafter without life": ("Crafter-NoLife-v0", 1_000_000),
    "Craftax-Classic": ("Craftax-Classic-Pixels-v1", 1_000_000),
    **{f"MazeS{size}": (f"MiniWorld-MazeS{size}-v0", 1_000_000) for size in (3, 4, 5)},
    **{f"Maze3D-S{size}": (f"Maze3D-S{size}-v0", 1_000_000) for size in (3, 4, 5)},
    "Acrobot-swingup": ("dmc:acrobot-swingup_sparse", 1_000_000),
    "Hopper-hop": ("dmc:hopper-hop", 1_000_000),
    "Cartpole-swingup": ("dmc:cartpole-swingup_sparse", 1_000_000),
    "Reach": ("metaworld:reach", 1_000_000),
    "Hammer": ("metaworld:hammer", 1_000_000),
    "Button-press": ("metaworld:button-press", 1_000_000),
    "HalfCheetahVelSparse": ("HalfCheetahVelSparse-v0", 1_000_000),
}
"""Environment and steps by task. 2Q starts in the centre room, as in the package the paper used. Of the last sixteen,
the paper gives the steps of Crafter only."""

EIGHT = tuple(TASKS)[1:9]
NOISY = tuple(f"{EIGHT[k]} (noisy)" for k in range(4))
SMALL = {
    "MultiRoom-N6": "MultiRoom-N2-S4-v0",
    "DoorKey-8x8": "DoorKey-5x5-v0",
    "DoorKey-16x16": "DoorKey-6x6-v0",
    "KeyCorridorS6R3": "KeyCorridorS3R1-v0",
    "ObstructedMaze-2Dlh": "ObstructedMaze-1Dl-v0",
    "ObstructedMaze-2Dlhb": "ObstructedMaze-1Dlh-v0",
    "ObstructedMaze-1Q": "ObstructedMaze-1Dlhb-v0",
    "ObstructedMaze-2Q": "ObstructedMaze-2Dl-v0",
    "ObstructedMaze-Full": "ObstructedMaze-2Dlh-v0",
    "ObstructedMaze-Full-v1": "ObstructedMaze-2Dlhb-v1",
}
"""The level of the quick version: a different one for every task, so that the figure has as many panels."""


def _entry(task: str, method: str, bonus: str = "", **changes: object) -> Entry:
    """The preset of ``bonus`` (by default the method's name) on the task, with ``changes`` to fields of the bonus."""
    env, steps = TASKS[task.removesuffix(" (noisy)")]
    experiment = replace(presets.choose(env, bonus or method), steps=steps, seeds=5)
    if task.endswith(" (noisy)"):
        experiment = replace(experiment, env=replace(experiment.env, noise=0.1))
    for field, value in changes.items():
        experiment = override(experiment, f"bonus.{field}={value}")
    return Entry(task, method, experiment)


def _table(tasks: Iterable[str], methods: Iterable[str]) -> list[Entry]:
    methods = tuple(methods)
    return [_entry(task, method) for task in tasks for method in methods]


def _noise() -> list[Entry]:
    methods = ("etd", "noveld", "deir", "e3b")
    return _table(NOISY, methods) + _table(["DoorKey-16x16"], methods)


def _ablation(field: str, values: dict[str, object]) -> Callable[[], list[Entry]]:
    """ETD on ObstructedMaze-1Q, the paper's level for ablations, with each value of a field."""
    return lambda: [_entry("ObstructedMaze-1Q", name, "etd", **{field: value}) for name, value in values.items()]


def _rivals() -> list[Entry]:
    """What the paper may have run. The authors' command line gives the models of E3B and NGU a GRU by default.

    EC is not in their code. A memory of 2,561 holds the longest episode, as ETD's does; of 50, F is about the fifth
    nearest, as many as are within 5 steps. EC's own code has a threshold of 0.5 in mazes; 0.9 omits sure repeats only.
    """
    recurrent = [
        _entry(task, name, bonus, **changes)
        for task in ("DoorKey-16x16", "KeyCorridorS6R3")
        for bonus in ("e3b", "ngu")
        for name, changes in ((bonus, {}), (f"{bonus}-gru", {"cell": "gru"}))
    ]
    memories = [
        _entry("DoorKey-16x16", f"ec-{field}-{value}", "ec", **{field: value})
        for field, value in (("capacity", 50), ("capacity", 2561), ("threshold", 0.5), ("threshold", 0.9))
    ]
    return [*recurrent, _entry("DoorKey-16x16", "ec"), *memories]


FIGURES: dict[str, tuple[str, Callable[[], list[Entry]]]] = {
    "bonuses": (
        "Every bonus on two sizes of DoorKey",
        lambda: _table(
            ("DoorKey-8x8", "DoorKey-16x16"),
            ["etd", "noveld", "deir", "count", "e3b", "ec", "ngu", "rnd", "icm", "ride", "agac", "none"],
        ),
    ),
    "minigrid": (
        "The paper's main figure: ETD and eight rivals on eight levels",
        lambda: _table(EIGHT, ["etd", "deir", "noveld", "e3b", "ec", "ngu", "rnd", "count", "none"]),
    ),
    "rivals": ("E3B and NGU with a GRU in their models, EC with other memories", _rivals),
    "full-v1": (
        "ObstructedMaze-Full-v1, where no key gets lost",
        lambda: _table(["ObstructedMaze-Full-v1"], ("etd", "noveld", "deir", "none")),
    ),
    "noise": ("Noisy observations, and DoorKey-16x16 without noise", _noise),
    "representation": (
        "ETD's aggregate on other embeddings",
        lambda: _table(("DoorKey-16x16", "ObstructedMaze-1Q"), ("etd", "inverse", "discriminator")),
    ),
    "aggregate": (
        "Minimum, quantile and nearest neighbours",
        _ablation("aggregate", {name: name for name in ("min", "quantile10", "knn10", "knn10avg")}),
    ),
    "symmetry": (
        "With and without MRN's asymmetric half",
        _ablation("symmetric", {"asymmetric": False, "symmetric": True}),
    ),
    "energy": (
        "Energy functions of the contrastive loss",
        _ablation("energy", {name: name for name in ("mrn+potential", "mrn", "l2", "cos")}),
    ),
    "loss": (
        "Directions of the contrastive loss",
        _ablation("objective", {name: name for name in ("symmetric", "forward", "backward")}),
    ),
    "crafter": (
        "Crafter with and without its health reward",
        lambda: _table(("Crafter", "Crafter without life"), ("etd", "deir", "noveld", "none")),
    ),
    "craftax": (
        "Craftax-Classic, a JAX version of Crafter; not in the paper",
        lambda: _table(["Craftax-Classic"], ("etd", "deir", "noveld", "none")),
    ),
    "miniworld": (
        "MiniWorld mazes of three sizes",
        lambda: _table(("MazeS3", "MazeS4", "MazeS5"), ("etd", "deir", "noveld", "none")),
    ),
    "maze3d": (
        "The same mazes on the device",
        lambda: _table(("Maze3D-S3", "Maze3D-S4", "Maze3D-S5"), ("etd", "deir", "noveld", "none")),
    ),
    "dmc": (
        "DeepMind Control tasks with sparse rewards",
        lambda: _table(("Acrobot-swingup", "Hopper-hop", "Cartpole-swingup"), ("etd", "noveld", "e3b", "none")),
    ),
    "metaworld": (
        "Meta-World with a reward for success only",
        lambda: _table(("Reach", "Hammer", "Button-press"), ("etd", "noveld", "e3b", "none")),
    ),
    "halfcheetah": (
        "HalfCheetah with a reward at one target speed",
        lambda: _table(["HalfCheetahVelSparse"], ("etd", "noveld", "e3b", "none")),
    ),
}
"""Title and entries by name."""


def entries(figure: str) -> list[Entry]:
    """What the figure is made of."""
    if figure not in FIGURES:
        raise unknown("figure", figure, FIGURES, f"The figures are {', '.join(FIGURES)}.")
    return FIGURES[figure][1]()


def small(entry: Entry) -> Entry:
    """A version of the entry that two CPU cores train in seconds: a small level if it is MiniGrid's, a small agent, a
    few thousand steps. It shows that everything works, and nothing about the method."""
    env, level = entry.experiment.env, SMALL.get(entry.task.removesuffix(" (noisy)"))
    if level is not None:
        env = replace(env, id=f"MiniGrid-{level}")
    experiment = replace(
        entry.experiment,
        env=env,
        steps=4_096,
        seeds=2,
        num_envs=4,
        rollout_steps=128,
    )
    sizes = {"minibatch": 256, "epochs": 1, "features": 16, "latent": 16, "queue": 512}
    for part in ("ppo", "bonus"):
        for field, value in sizes.items():
            if hasattr(getattr(experiment, part), field):
                experiment = override(experiment, f"{part}.{field}={value}")
    return replace(entry, experiment=experiment)
