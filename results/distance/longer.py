"""``python results/distance/longer.py``: ETD in the spiral with longer walks and more training. Writes longer.json."""

from __future__ import annotations

import json
from pathlib import Path

from etd.lab.mazes.distance import distance, temporal
from etd.lab.mazes.scores import table

CASES = [(300, 50, 600), (75, 200, 600), (30, 500, 600), (75, 200, 2400), (300, 50, 2400)]
"""(walks, steps of each, training steps): always 15,000 steps of data"""


def main() -> None:
    rows = []
    for walks, length, steps in CASES:
        found = distance("Spiral", walks=walks, length=length, steps=steps, learners={"etd": temporal(0.99)})
        scores = table(found, red=0)["etd"]
        seeds = {name: [round(score, 5) for score in scores[name]] for name in ("path spearman", "path spearman, all")}
        rows.append({"walks": walks, "length": length, "steps": steps, **seeds})
        print(rows[-1], flush=True)
        Path(__file__).with_name("longer.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
