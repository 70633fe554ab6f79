"""What speaks against taking a comparison of recorded runs at its face: one function a warning."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e3rl.analysis.measures.arms import Row, arm_label
from e3rl.analysis.measures.costs import cost_before
from e3rl.analysis.measures.families import BETTER, NEITHER, WORSE, fewest_seeds
from e3rl.analysis.measures.matched_control import WHOLE_RUN
from e3rl.analysis.sources.config_differences import (
    config_differences,
    is_of_versions,
    settings_of_versions,
)
from e3rl.analysis.sources.runs import Arms, Run
from e3rl.config.differences import flatten
from e3rl.config.saved import read_saved_configuration
from e3rl.ledger.files import CONFIG
from e3rl.statistics.means import ENOUGH_SEEDS
from e3rl.temperatures.matching import FEWEST_ROLLOUTS

TARGET = "_target_"
TRAINING_ONLY = ("head", "lora", "gradient_checkpointing")  # of a policy; it starts the same
ENVIRONMENT = ("engine", "trainer.enable", "figures", "data.seed")  # where a run took place
PROPOSED, MULTIRUN = "optimization_results.yaml", "multirun.yaml"
NOT_TUNED = ("callbacks", "data", "paths", "logger", "seed", *ENVIRONMENT)  # or said elsewhere
GRID = 3  # values of one number from which on somebody may be choosing
FLATTER = 0.05  # of the control's entropy, from which on pass@k may tell of it alone
FARTHER = 1.01  # than the equal cost, where a run's last validation is off it
COARSE = 0.05  # of a pass rate, from which on "not distinguishable" hides differences that matter


@dataclass(frozen=True)
class Compared:
    """Runs by arm, the arm that the others are compared with, and rows of `compare_arms`."""

    arms: Arms
    control: str | None
    rows: Sequence[Row]

    @property
    def runs(self) -> list[Run]:
        return [run for runs in self.arms.values() for run in runs]

    @property
    def others(self) -> dict[str, Sequence[Run]]:
        """Arms that are compared with the control; none without one."""
        if self.control is None:
            return {}
        return {arm: runs for arm, runs in self.arms.items() if arm != self.control}


def find_warnings(compared: Compared) -> list[str]:
    """All that is found, a sentence or two each."""
    return [line for warn in WARNINGS for line in warn(compared)]


def several_settings(compared: Compared) -> list[str]:
    """An arm that differs from its control in more than one setting, so that no single one can be
    told to have made the difference. What one slot is replaced by counts as one setting."""
    if compared.control is None:
        return []
    of_versions = settings_of_versions(compared.arms, compared.control)
    lines = _other_versions(compared, of_versions)
    for arm, runs in compared.others.items():
        pair = {arm: runs, str(compared.control): compared.arms[str(compared.control)]}
        different = config_differences(pair)
        keys = [key for key, values in different.items() if not is_of_versions(values.values())]
        names = settings_of(key for key in keys if key not in of_versions)
        if len(names) > 1:
            lines.append(
                f"{arm_label(arm)} differs from {arm_label(str(compared.control))} in "
                f"{len(names)} settings: {', '.join(names)}. A difference in accuracy may come "
                "from any of them."
            )
    return lines


def _other_versions(compared: Compared, found: Mapping[str, Sequence[str]]) -> list[str]:
    """One line for all arms that only the settings of versions tell from the control's version."""
    names = settings_of(found)
    if not names:
        return []
    arms = dict.fromkeys(arm for key in found for arm in found[key])
    every = len(arms) == len(compared.others)
    named = "all other arms" if every else ", ".join(arm_label(arm) for arm in arms)
    return [
        f"Recorded by another version than {arm_label(str(compared.control))}, judging by settings "
        f"that one side has alone ({', '.join(names)}): {named}. These count as no change of an "
        "arm, but versions may differ in more than their settings."
    ]


def repeated_seeds(compared: Compared) -> list[str]:
    """Several runs of one arm and one seed, which are taken for as many seeds."""
    lines = []
    for arm, runs in compared.arms.items():
        counts = Counter(run.seed for run in runs)
        for seed, count in sorted(item for item in counts.items() if item[1] > 1):
            same = {str(run.path): [run] for run in runs if run.seed == seed}
            names = settings_of(config_differences(same))
            differ = f" They differ in {', '.join(names)}." if names else ""
            lines.append(
                f"{arm_label(arm)} has {count} runs of seed {seed}, which count as {count} seeds: "
                f"{', '.join(same)}.{differ} Leave all but one out, or give runs that differ names "
                "of their own."
            )
    return lines


def unmatched_entropies(compared: Compared) -> list[str]:
    """An arm whose own temperature is compared with a control at another entropy."""
    gaps: dict[str, str] = {}
    for row in compared.rows:
        if row.get("unmatched") and row["unmatched"] != WHOLE_RUN:
            gap = row["entropy_gap"]
            words = (
                f"fewer than {FEWEST_ROLLOUTS} rollouts" if gap is None else f"{100 * gap:+.1f} %"
            )
            gaps.setdefault(row["arm"], words)
    if not gaps:
        return []
    alike = {words: [arm_label(a) for a in gaps if gaps[a] == words] for words in gaps.values()}
    named = "; ".join(
        f"{', '.join(arms)} ({words}{' each' * (len(arms) > 1)})" for words, arms in alike.items()
    )
    return [
        f"No control at the entropy that these arms have at their own temperature: {named}. Their "
        "rows have no verdict; e3rl record samples what one takes."
    ]


def unequal_entropies(compared: Compared) -> list[str]:
    """pass@k, at one temperature, of arms that are flatter or sharper than the control."""
    gaps: dict[str, str] = {}
    for row in compared.rows:
        own, other = row.get("entropy"), row.get("against_entropy")
        if not own or not other or row["measure"].endswith("@1") or row.get("unmatched"):
            continue
        if row.get("entropy_gap") is None and abs(own / other - 1) > FLATTER:
            gaps.setdefault(row["arm"], f"{100 * (own / other - 1):+.0f} %")
    if not gaps:
        return []
    named = ", ".join(f"{arm_label(arm)} ({gap})" for arm, gap in gaps.items())
    return [
        f"At equal temperature these policies have another entropy than the control: {named}. A "
        "flatter policy has more pass@k and a sharper one less, whatever it has learned; compare "
        "at equal entropy (e3rl record) before saying that it found more."
    ]


def lines_from_the_start(compared: Compared) -> list[str]:
    """Arms that are read, at equal cost, on a line from the untrained policy to the last one."""
    found: dict[str, None] = {}
    for row in compared.rows:
        if row.get("spent") is not None or not row.get("cost"):  # read where it is
            continue
        for run in compared.arms.get(row["arm"], ()):
            here = run.evaluations[run.evaluations["name"] == row["evaluation"]]
            steps = sorted(set(here["rollout_step"]))
            costs = cost_before(run.train, steps, row["axis"])
            if len(steps) == 2 and steps[0] == 0 and costs[1] > FARTHER * row["cost"]:
                found.setdefault(row["arm"])
    if not found:
        return []
    named = ", ".join(arm_label(arm) for arm in found)
    return [
        f"Validated before training and at the end alone, and more expensive than the others: "
        f"{named}. At equal cost they are read on a straight line from the untrained policy, below "
        "a curve that flattens; validate in between (validate_every)."
    ]


def shared_validation_noise(compared: Compared) -> list[str]:
    """Runs that draw their validation from the same random numbers."""
    drawn: dict[Any, set[int]] = {}
    for run in compared.runs:
        node = run.config.get("callbacks", {}).get("pass_at_k")
        if node is not None:
            drawn.setdefault(node.get("seed"), set()).add(run.seed)
    if not any(len(seeds) > 1 for seeds in drawn.values()):
        return []
    return [
        "Runs of several seeds validate with the same random numbers: their luck is alike, and no "
        "number of seeds averages it out. Runs with callbacks.pass_at_k.seed of their own have "
        "luck of their own."
    ]


def tuned_on_validation(compared: Compared) -> list[str]:
    """Validation problems by which a sweep beside the runs chose its settings."""
    validated = {str(_validation(run.config)) for run in compared.runs} - {"None"}
    lines = []
    for sweep in sorted({folder for run in compared.runs for folder in sweeps_beside(run.path)}):
        configs = [read_saved_configuration(file) for file in sorted(sweep.glob(f"*/{CONFIG}"))]
        if any(str(_validation(config)) in validated for config in configs):
            lines.append(
                f"The sweep {sweep.name} was tuned on these validation problems: its choice fits "
                "them. Compare on problems that nothing was chosen by."
            )
    return lines


def tried_on_validation(compared: Compared) -> list[str]:
    """Numbers of which the arms, or the runs of a sweep beside them, try several values on these
    validation problems: whoever takes the best of them has tuned on what it is judged by."""
    lines = []
    for key, values in values_tried(run.config for run in compared.runs).items():
        lines.append(
            f"These arms try {len(values)} values of {key} ({_listed(values)}) on the same "
            "validation problems: the best of them is flattered. Run it again with seeds and "
            "problems (data.validation.seed) that it was not chosen by."
        )
    own = {run.path.resolve().parent for run in compared.runs}
    validated = {str(_validation(run.config)) for run in compared.runs} - {"None"}
    beside = {folder for parent in own for folder in parent.parent.glob("*") if folder.is_dir()}
    for sweep in sorted(beside - own):
        configs = [read_saved_configuration(file) for file in sorted(sweep.glob(f"*/{CONFIG}"))]
        on_these = [config for config in configs if str(_validation(config)) in validated]
        for key, values in values_tried(on_these).items():
            lines.append(
                f"The sweep {sweep.name} tries {len(values)} values of {key} on these validation "
                "problems: if a setting of these arms was chosen by it, the choice fits them."
            )
    return lines


def few_seeds(compared: Compared) -> list[str]:
    """Comparisons of fewer than `ENOUGH_SEEDS` seeds, and verdicts that rest on so few."""
    compares = [row for row in compared.rows if row["difference"] is not None]
    counts = {row["arm"]: fewest_seeds(row) or 1 for row in compares}
    few = {arm: n for arm, n in counts.items() if n < ENOUGH_SEEDS}
    if not few:
        return []
    each = set(few.values())
    alike = len(few) == len(counts) and len(each) == 1
    named = (
        f"{each.pop()} each" if alike else ", ".join(f"{arm_label(a)} {n}" for a, n in few.items())
    )
    lines = [
        f"Fewer than {ENOUGH_SEEDS} seeds ({named}): an interval hardly knows how seeds differ, "
        "and a verdict may not repeat; of one seed there is none."
    ]
    sure = (BETTER, WORSE)
    judged = [row for row in compared.rows if row["arm"] in few and row.get("verdict") in sure]
    if judged:
        words = [f"{arm_label(r['arm'])} {r['verdict']} in {r['measure']}" for r in judged]
        lines.append(
            f"Verdicts that rest on fewer than {ENOUGH_SEEDS} seeds: {', '.join(words)}. Run more "
            "seeds before they are told to anybody."
        )
    return lines


def coarse_verdicts(compared: Compared) -> list[str]:
    """Arms that are not told apart where only large differences could have been."""
    least: dict[str, float] = {}
    for row in compared.rows:
        if row.get("verdict") == NEITHER and (row.get("detectable") or 0.0) > COARSE:
            least[row["arm"]] = max(least.get(row["arm"], 0.0), row["detectable"])
    if not least:
        return []
    named = ", ".join(f"{arm_label(arm)} ({100 * size:.0f} points)" for arm, size in least.items())
    return [
        "Not distinguishable does not mean equal: these seeds and problems find only differences "
        f"as large as {named}, each by its coarsest row."
    ]


def other_base_policy(compared: Compared) -> list[str]:
    """An arm that starts from another policy than its control."""
    if compared.control is None:
        return []
    start = {_start(run) for run in compared.arms[compared.control]}
    return [
        f"{arm_label(arm)} starts from another policy than {arm_label(compared.control)}: the "
        "difference between them is not one of training."
        for arm, runs in compared.others.items()
        if {_start(run) for run in runs} != start
    ]


WARNINGS: tuple[Callable[[Compared], list[str]], ...] = (
    other_base_policy,
    several_settings,
    repeated_seeds,
    unmatched_entropies,
    unequal_entropies,
    lines_from_the_start,
    tuned_on_validation,
    tried_on_validation,
    few_seeds,
    coarse_verdicts,
    shared_validation_noise,
)


def settings_of(keys: Iterable[str]) -> list[str]:
    """Keys that differ, those below a node that was replaced as a whole by that node.

    Where and how a run took place, and its policy, which has a warning of its own, are left out.
    """
    different = list(keys)
    replaced = [key.removesuffix(f".{TARGET}") for key in different if key.endswith(f".{TARGET}")]
    names = []
    for key in different:
        above = [node for node in replaced if key.startswith(f"{node}.")]
        names.append(min(above, key=len) if above else key)
    kept = [name for name in names if not name.startswith((*ENVIRONMENT, "policy"))]
    return list(dict.fromkeys(_slot(name) for name in kept))


def _slot(name: str) -> str:
    """`temperature` of `callbacks.temperature.strategy`: a choice stands in both places."""
    parts = name.split(".")
    return parts[1] if parts[0] == "callbacks" and parts[-1] == "strategy" else name


def sweeps_beside(run: Path) -> list[Path]:
    """Sweeps that propose values, among the folder of a run's sweep and those next to it."""
    sweep = run.resolve().parent
    folders = [sweep, *(each for each in sweep.parent.glob("*") if each.is_dir())]
    return [folder for folder in folders if proposes_values(folder)]


def proposes_values(sweep: Path) -> bool:
    """Whether a sweep's settings were chosen by what its runs scored."""
    if (sweep / PROPOSED).is_file():
        return True
    if not (sweep / MULTIRUN).is_file():
        return False
    text = yaml.safe_load((sweep / MULTIRUN).read_text(encoding="utf-8")) or {}
    return "optuna" in str(text.get("hydra", {}).get("sweeper", {}).get(TARGET, "")).lower()


def values_tried(configs: Iterable[Any]) -> dict[str, list[float]]:
    """Settings that are numbers and have `GRID` values and more in these configurations.

    Values of one mechanism (the `_target_` of the node) are one setting's, those of another are
    not. A setting that stands in a second place, by interpolation, counts at its shorter key.
    """
    found: dict[tuple[str, str], set[float]] = {}
    for config in configs:
        leaves = flatten(config) if isinstance(config, Mapping) else {}
        for key, value in leaves.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            tail = key.partition(".")[2]
            if key.startswith(NOT_TUNED) or (tail and leaves.get(tail) == value):
                continue
            found.setdefault((key, _mechanism(key, leaves)), set()).add(value)
    tried = [(key, sorted(values)) for (key, _), values in found.items() if len(values) >= GRID]
    return dict(sorted(tried, key=lambda each: (each[0], len(each[1]))))


def _mechanism(key: str, leaves: Mapping[str, Any]) -> str:
    """The `_target_` of the node that a setting belongs to; empty where there is none."""
    node, _, _ = key.rpartition(".")
    return str(leaves.get(f"{node}.{TARGET}", ""))


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _validation(config: Any) -> Any:
    data = config.get("data") if isinstance(config, Mapping) else None
    return data.get("validation") if isinstance(data, Mapping) else None


def _start(run: Run) -> str:
    """What decides the policy that a run starts from, as text."""
    policy = run.config.get("policy") or {}
    own = {key: value for key, value in policy.items() if key not in TRAINING_ONLY}
    return str(sorted(flatten(own).items(), key=lambda item: item[0]))
