"""Do right completions of one problem differ in length?

    .venv/bin/python experiments/length_reward/lengths.py RUN...

RUN are run folders of training (the light copies in ../runs have no completions).
"""

import json
import sys
from collections import defaultdict
from pathlib import Path


def main() -> None:
    lengths: defaultdict[str, list[int]] = defaultdict(list)
    for run in sys.argv[1:]:
        for line in (Path(run) / "completions.jsonl").read_text().splitlines():
            row = json.loads(line)
            if row["reward"] > 0:
                lengths[row["prompt_id"]].append(row["tokens"])
    several = [found for found in lengths.values() if len(found) > 1]
    same = sum(len(set(found)) == 1 for found in several)
    spread = sum(max(found) - min(found) for found in several) / max(1, len(several))
    print(f"{len(several)} problems with several right completions, {same} of one length each")
    print(f"longest less shortest, on average: {spread:.2f} tokens")


if __name__ == "__main__":
    main()
