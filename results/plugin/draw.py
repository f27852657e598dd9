"""``python results/plugin/draw.py``: the learning curves of this folder as curves.png.

LEVEL/METHOD/SEED.csv is what ``runs.py`` keeps: steps, and the mean return of the last 100 episodes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from etd.lab.report import plot
from etd.lab.report.curves import Curves, centre

HERE = Path(__file__).parent
LIMITS = {"DoorKey-8x8": 640, "DoorKey-16x16": 2560}
"""Steps of the longest episode by level."""
COLOURS = {
    "ppo-etd": plot.COLOURS["etd"],
    "ppo-etd-4": "#fd8d3c",
    "ppo-etd-1": "#fdbe85",
    "ppo": plot.COLOURS["none"],
    "recurrent-ppo-etd": "#8c6bb1",
    "recurrent-ppo": "#999999",
    "one-file-etd": "#41ab5d",
    "one-file": "#c2a36b",
    "rlexplore-1": "#7a0177",
    "rlexplore-0.01": "#3182bd",
}


def read(folder: Path) -> Curves:
    """The returns of a method's seeds. Before every environment must have finished an episode they say little: the few
    episodes that end sooner are the successful ones. A training that ended early keeps its last return."""
    files = sorted(folder.glob("*.csv"), key=lambda file: int(file.stem))
    tables = [np.loadtxt(file, delimiter=",", skiprows=1) for file in files]
    steps = max((table[:, 0] for table in tables), key=len)
    values = np.stack([np.pad(table[:, 1], (0, len(steps) - len(table)), mode="edge") for table in tables])
    environments = 64 if folder.name.startswith("recurrent") else 16
    values[:, steps < environments * LIMITS[folder.parent.name]] = np.nan
    return Curves([int(file.stem) for file in files], steps, values)


def main() -> None:
    levels = [level for level in LIMITS if (HERE / level).is_dir()]
    figure, axes = plot.grid(len(levels), (6.0, 3.8))
    for axis, level in zip(axes, levels, strict=True):
        for method in (name for name in COLOURS if (HERE / level / name).is_dir()):
            curves = read(HERE / level / method)
            axis.plot(curves.steps, curves.values.T, color=COLOURS[method], linewidth=0.6, alpha=0.4)
            axis.plot(curves.steps, centre(curves.values), color=COLOURS[method], linewidth=2.2, label=method)
        axis.set(title=level, xlabel="steps", ylabel="return", ylim=(0, 1), xlim=(0, None))
        axis.legend(fontsize=8, frameon=False)
    print(plot.save(figure, HERE / "curves.png"))


if __name__ == "__main__":
    main()
