"""ETD with longer walks and more training. Writes longer.json, or longer-hard.json.

python results/distance/longer.py          the spiral
python results/distance/longer.py hard     the harder maze
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from etd.lab.mazes.distance import distance, temporal
from etd.lab.mazes.scores import table

STUDIES = {
    "spiral": (
        "Spiral",
        "longer.json",
        [(300, 50, 600), (75, 200, 600), (30, 500, 600), (75, 200, 2400), (300, 50, 2400)],
    ),
    "hard": (
        "Interlocked",
        "longer-hard.json",
        [(1000, 50, 2400), (250, 200, 2400), (100, 500, 2400), (100, 500, 5000)],
    ),
}
"""maze, file, and (walks, steps of each, training steps): always the same steps of data in a maze, 15,000 or 50,000"""


def main(study: str = "spiral") -> None:
    maze, file, cases = STUDIES[study]
    rows: list[dict] = []
    for walks, length, steps in cases:
        found = distance(maze, walks=walks, length=length, steps=steps, learners={"etd": temporal(0.99)})
        scores = table(found, red=0)["etd"]
        seeds = {name: [round(score, 5) for score in scores[name]] for name in ("path spearman", "path spearman, all")}
        rows.append({"walks": walks, "length": length, "steps": steps, "pieces": list(found.pieces), **seeds})
        print(rows[-1], flush=True)
        Path(__file__).with_name(file).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
