"""Warnings about what arms differ in besides what they try: settings, code, first policies."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from e3rl.analysis.measures.arms import arm_label
from e3rl.analysis.sources.code_versions import commits_of, settings_of_versions
from e3rl.analysis.sources.config_differences import TARGET, config_differences, is_unsaid
from e3rl.analysis.sources.runs import Arms, Run
from e3rl.analysis.warnings.compared import Compared
from e3rl.config.differences import flatten

POLICY, ENGINE = "policy", "engine"
TRAINING_ONLY = ("head", "lora", "gradient_checkpointing")  # of a policy; it starts the same
# Ways to compute the same, and where a run took place.
SAME_NUMBERS = ("policy.head", "policy.gradient_checkpointing", "trainer.enable", "figures")
PRECISION = "dtype"  # which counts, of the head and of the engine too
EVEN_BUDGETS = ("Uniform", "DynamicSampling")  # the same number of rollouts for all prompts
LETTERS = 7  # of a commit that tell it from others


def other_base_policy(compared: Compared) -> list[str]:
    """An arm that starts from another policy than its control."""
    if compared.control is None:
        return []
    control = compared.arms[compared.control]
    return [
        f"{arm_label(arm)} starts from another policy than {arm_label(compared.control)}: the "
        "difference between them is not one of training."
        for arm, runs in compared.others.items()
        if tells_settings(runs) == tells_settings(control) and start_apart(runs, control)
    ]


def several_settings(compared: Compared) -> list[str]:
    """An arm that differs from its control in more than one setting, so that no single one can be
    told to have made the difference. What one slot is replaced by counts as one setting, and so do
    another first policy, adapters and another engine."""
    if compared.control is None:
        return []
    control = arm_label(compared.control)
    theirs = compared.arms[compared.control]
    of_versions = settings_of_versions(compared.arms, compared.control)
    lines = other_code(compared, of_versions)
    for arm, runs in compared.others.items():
        if tells_settings(runs) != tells_settings(theirs):
            silent = control if tells_settings(runs) else arm_label(arm)
            lines.append(
                f"{silent} records no settings of a policy: what {arm_label(arm)} and {control} "
                "differ in, and whether they start alike, is not known."
            )
            continue
        pair = {arm: runs, compared.control: theirs}
        names = changed_settings(pair, of_versions | settings_of_versions(pair, compared.control))
        if len(names) > 1:
            lines.append(
                f"{arm_label(arm)} differs from {control} in {len(names)} settings: "
                f"{', '.join(names)}. A difference in accuracy may come from any of them."
            )
    return lines


def weighty_rollouts(compared: Compared) -> list[str]:
    """Arms that give some prompts more rollouts than others, under an objective in which these
    prompts then weigh more too: two changes in one slot."""
    if compared.control is None or rollouts_weigh(compared.arms[compared.control]):
        return []
    arms = [arm_label(arm) for arm, runs in compared.others.items() if rollouts_weigh(runs)]
    if not arms:
        return []
    have = "has" if len(arms) == 1 else "have"
    return [
        f"{', '.join(arms)} {have} more rollouts for some prompts than for others, which under "
        "loss.prompt_weight=sample weigh more in the update by that: what rollouts do and what "
        "their weight does is not told apart. An arm with loss.prompt_weight=prompt beside it does."
    ]


def rollouts_weigh(runs: Sequence[Run]) -> bool:
    """Whether by its settings an arm's rollouts count alike, and its prompts may have unlike
    numbers of them."""
    budget, loss = (runs[0].config.get(slot) or {} for slot in ("budget", "loss"))
    rule = str(budget.get(TARGET, EVEN_BUDGETS[0])).rpartition(".")[2]
    even = rule in EVEN_BUDGETS or budget.get("spend") == "weight"
    by_prompt = loss.get("prompt_weight") == "prompt" or loss.get("aggregation") == "prompt_mean"
    return not (even or by_prompt)


def other_code(compared: Compared, of_versions: set[str]) -> list[str]:
    """One line for all arms that were recorded by other commits of the code than the control."""
    control = str(compared.control)
    base = commits_of(compared.arms[control])
    by_commits: dict[str, list[str]] = {}
    for arm, runs in compared.others.items():
        found = commits_of(runs)
        if found and base and not found & base:
            by_commits.setdefault(_shortened(found), []).append(arm_label(arm))
    if not by_commits:
        return []
    named = "; ".join(f"{', '.join(arms)} ({commits})" for commits, arms in by_commits.items())
    if len(by_commits) == 1 and len(*by_commits.values()) == len(compared.others) > 1:
        named = f"all other arms ({next(iter(by_commits))})"
    names = settings_of(sorted(of_versions))
    kept = f"What came with it ({', '.join(names)}) counts as no change of an arm. " * bool(names)
    return [
        f"Recorded by other commits of the code than {arm_label(control)} ({_shortened(base)}): "
        f"{named}. {kept}A commit may change more than settings tell."
    ]


def _shortened(commits: Iterable[str]) -> str:
    return ", ".join(sorted(each[:LETTERS] for each in commits))


def unlike_runs(compared: Compared) -> list[str]:
    """An arm whose runs differ in more than their seed, so that it is not one arm."""
    of_versions = settings_of_versions(compared.arms, compared.control or next(iter(compared.arms)))
    lines = []
    for arm, runs in compared.arms.items():
        different = config_differences({str(run.path): [run] for run in runs})
        names = settings_of(
            key
            for key, texts in different.items()
            if key not in of_versions and not is_unsaid(texts.values())
        )
        if names:
            lines.append(
                f"Runs that are called {arm} differ in more than their seed: {', '.join(names)}. "
                "They are taken for seeds of one arm; give runs that differ names of their own."
            )
    return lines


def repeated_seeds(compared: Compared) -> list[str]:
    """Several runs of one arm and one seed, which are taken for as many seeds."""
    lines = []
    for arm, runs in compared.arms.items():
        counts = Counter(run.seed for run in runs)
        for seed, count in sorted(item for item in counts.items() if item[1] > 1):
            same = {str(run.path): [run] for run in runs if run.seed == seed}
            names = changed_settings(same)
            differ = f" They differ in {', '.join(names)}." if names else ""
            lines.append(
                f"{arm_label(arm)} has {count} runs of seed {seed}, which count as {count} seeds: "
                f"{', '.join(same)}.{differ} Leave all but one out, or give runs that differ names "
                "of their own."
            )
    return lines


def changed_settings(arms: Arms, left_out: Iterable[str] = ()) -> list[str]:
    """What arms differ in, as `settings_of` names it, but for keys that are left out; `policy`
    where they start from different ones."""
    different = config_differences(arms)
    left = set(left_out)
    kept = [key for key, texts in different.items() if key not in left]
    names = settings_of(key for key in kept if not is_unsaid(different[key].values()))
    first, *others = arms.values()
    apart = any(start_apart(first, runs) for runs in others)
    return sorted({*names, POLICY} if apart else names)


def settings_of(keys: Iterable[str]) -> list[str]:
    """Keys that differ, those below a node that was replaced as a whole by that node.

    What decides the policy that a run starts from is left out, and so is what decides no number:
    how logits are computed, and what of an engine is neither its class nor its precision.
    """
    different = list(keys)
    replaced = [key.removesuffix(f".{TARGET}") for key in different if key.endswith(f".{TARGET}")]
    names = []
    for key in different:
        above = [node for node in replaced if key.startswith(f"{node}.")]
        names.append(min(above, key=len) if above else key)
    return list(dict.fromkeys(_slot(name) for name in names if _decides_numbers(name)))


def _decides_numbers(name: str) -> bool:
    """Whether a setting may make a difference, and is none of the first policy's."""
    if name.rsplit(".", 1)[-1] == PRECISION and name != f"{POLICY}.{PRECISION}":
        return True
    if name.startswith(SAME_NUMBERS) or name.startswith(f"{ENGINE}."):
        return False
    return name.split(".")[0] != POLICY or name.startswith(f"{POLICY}.lora")


def _slot(name: str) -> str:
    """`temperature` of `callbacks.temperature.strategy`: a choice stands in both places."""
    parts = name.split(".")
    return parts[1] if parts[0] == "callbacks" and parts[-1] == "strategy" else name


def tells_settings(runs: Sequence[Run]) -> bool:
    """Whether runs record what policy they train, which imported ones do not."""
    return any(run.config.get(POLICY) for run in runs)


def start_apart(runs: Sequence[Run], others: Sequence[Run]) -> bool:
    """Whether runs start from another policy than others, seed by seed where seeds are shared."""
    mine, theirs = _starts(runs), _starts(others)
    shared = mine.keys() & theirs.keys()
    if shared:
        return any(mine[seed] != theirs[seed] for seed in shared)
    return set().union(*mine.values()) != set().union(*theirs.values())


def _starts(runs: Sequence[Run]) -> Mapping[int, set[str]]:
    """What decides the policy that runs start from, as text, by seed."""
    found: dict[int, set[str]] = {}
    for run in runs:
        policy = run.config.get(POLICY) or {}
        own = {key: value for key, value in policy.items() if key not in TRAINING_ONLY}
        text = str(sorted(flatten(own).items(), key=lambda item: item[0]))
        found.setdefault(run.seed, set()).add(text)
    return found
