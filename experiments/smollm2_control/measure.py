"""How the entropy of SmolLM2 goes with the temperature, without training.

    .venv/bin/python experiments/smollm2_control/measure.py            # the README's table again
    .venv/bin/python experiments/smollm2_control/measure.py FOLDER     # of a new `e3rl evaluate`

The elasticity between two temperatures is d ln H / d ln T of their entropies, both of what was
sampled there: contexts are those of the temperature, as a controller sees them.
"""

import sys
from itertools import pairwise
from math import log
from pathlib import Path

import pandas as pd

from e3rl.analysis.tables.cells import Cells, as_markdown

HERE = Path(__file__).parent
RESULTS, README = HERE / "results" / "temperatures.csv", HERE / "README.md"
BEGIN, END = "<!-- table: temperatures -->", "<!-- end -->"
COLUMNS = ["temperature", "entropy", "avg@n", "avg@n_low", "avg@n_high", "truncated", "problems"]


def main() -> None:
    if sys.argv[1:]:
        found = pd.read_csv(Path(sys.argv[1]) / "results.csv")[[*COLUMNS, "samples"]]
        found.round(6).to_csv(RESULTS, index=False, lineterminator="\n")
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    README.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}", encoding="utf-8")


def table() -> str:
    """A row for each temperature."""
    rows = pd.read_csv(RESULTS).sort_values("temperature").to_dict("records")
    steps = {
        low["temperature"]: log(high["entropy"] / low["entropy"])
        / log(high["temperature"] / low["temperature"])
        for low, high in pairwise(rows)
    }
    body = [
        [
            f"{row['temperature']:.2f}",
            f"{row['entropy']:.2f}",
            f"{steps[row['temperature']]:.1f}" if row["temperature"] in steps else "",
            "{:.1f} [{:.1f}, {:.1f}]".format(
                *(100 * row[name] for name in ("avg@n", "avg@n_low", "avg@n_high"))
            ),
            f"{100 * row['truncated']:.1f}",
        ]
        for row in rows
    ]
    header = ["T", "entropy, nats", "elasticity to the next T", "pass@1 %", "truncated %"]
    problems, samples = int(rows[0]["problems"]), int(rows[0]["samples"])
    note = f"{problems} questions, {samples} rollouts each; 95 % intervals over questions."
    return as_markdown(Cells(header, body, note), header[:1])


if __name__ == "__main__":
    main()
