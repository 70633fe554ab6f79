"""Finished runs as studies keep them: light copies, and what they lack; see `e3rl.record`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e3rl.analysis.measures.arms import LIVE
from e3rl.analysis.sources.runs import Run, group_by_arm, load_run, load_runs
from e3rl.callbacks.pass_at_k import EvaluationCounts
from e3rl.callbacks.validation_schedule import Evaluation
from e3rl.config.build import silence_libraries
from e3rl.evaluation.judging import reward_identity
from e3rl.evaluation.sampling import evaluate_policy, load_weights
from e3rl.ledger.archive import archive_of, open_runs, pack_runs
from e3rl.ledger.files import VALIDATION, recorded_code
from e3rl.ledger.ledger import pack, read_rows
from e3rl.process.output import check_folder
from e3rl.runs.exporting import export
from e3rl.runs.extent import WHOLE, Extent, round_numbers
from e3rl.runs.light_copies import check_recorded, copy_control, copy_new_runs, is_recorded
from e3rl.runs.resampling import (
    check_parts,
    has_weights,
    last_step,
    last_weights,
    rebuild,
    validation_problems,
)
from e3rl.temperatures.matching import FEWEST_ROLLOUTS, EntropyMatcher

TRAINING_ONLY = ("head", "lora", "gradient_checkpointing")  # of a policy; it starts the same
ITS_OWN = 0.02  # an arm this far from temperature 1, relatively, has a temperature of its own


@dataclass(frozen=True)
class Sampling:
    """What final policies are sampled for beside what their runs did.

    Args:
        n: rollouts per problem; 0: nothing is sampled.
        temperatures: at which every arm is sampled, evaluations `t<temperature>`.
        matched: evaluations of the arms at whose entropies the control is sampled; `live` is an
            arm at its own last temperature.
    """

    n: int
    temperatures: tuple[float, ...] = ()
    matched: tuple[str, ...] = (LIVE,)

    def at(self, temperatures: Sequence[float]) -> list[Evaluation]:
        """Evaluations at some temperatures."""
        return [Evaluation(f"t{each:g}", n=self.n, temperature=each) for each in temperatures]

    def at_start(self) -> list[Evaluation]:
        """Evaluations of the untrained policy."""
        return self.at([1.0, *(each for each in self.temperatures if each != 1)])

    def at_end(self, run: Run) -> list[Evaluation]:
        """Evaluations of a run's final policy, beside those at an entropy of others."""
        own = own_temperature(run, self.n) if LIVE in self.matched else []
        return [*own, *self.at(self.temperatures)]


def record_runs(
    source: Path,
    out: Path,
    control: str,
    sampling: Sampling,
    extent: Extent = WHOLE,
    archive: bool = False,
    keep_control: bool = False,
    keep_policies: bool = False,
) -> None:
    """All of `e3rl.record`; `archive`: keep OUT/runs as one file, as is done where there is one.

    Raises FileNotFoundError where `source` has no runs; ValueError where `out` can be no folder, no
    finished run is of the control, two of them have folders of one name, one has that of another
    run in `out`, or rollouts are too few for a control at equal entropy; ConfigurationError where
    what has to be sampled cannot be made again.
    """
    check_folder("", out)
    silence_libraries()
    finished = [run for run in load_runs(source) if run.summary is not None]
    arms = group_by_arm(finished)
    if control not in arms:
        raise ValueError(f"no finished run of the control {control!r}; there are {list(arms)}")
    check_names(finished)
    check_rollouts(arms, control, sampling)
    recorded = open_runs(out / "runs")
    check_recorded(finished, recorded)
    if keep_policies:
        check_policies(finished, recorded, out / "policies")
    if sampling.n > 0:
        check_sampled(arms, control, recorded, sampling)
    new = copy_new_runs(finished, recorded, extent)
    print(f"{len(finished)} finished runs, {len(new)} of them new")
    if sampling.n > 0:
        add_evaluations(arms, control, recorded, sampling)
    if keep_control:
        copy_control([recorded / run.path.name for run in arms[control]], out / "control")
    if keep_policies:
        copy_policies(finished, out / "policies")
    if archive or archive_of(recorded).is_file():
        pack_runs(recorded)


def check_names(runs: Sequence[Run]) -> None:
    """Raise ValueError where folders of two runs have one name, under which one would be kept."""
    paths: dict[str, Path] = {}
    for run in runs:
        if (other := paths.setdefault(run.path.name, run.path)) != run.path:
            raise ValueError(
                f"{other} and {run.path} have one name, under which only one can be recorded: "
                "rename one of the folders, or record each sweep into an OUT of its own"
            )


def check_rollouts(arms: Mapping[str, Sequence[Run]], control: str, sampling: Sampling) -> None:
    """Raise ValueError where evaluations would be too small to match an entropy with."""
    others = [run for arm, runs in arms.items() if arm != control for run in runs]
    if 0 < sampling.n < FEWEST_ROLLOUTS and entropies_to_match(others, sampling.matched):
        raise ValueError(
            f"n={sampling.n}: a control at the entropy of an arm takes {FEWEST_ROLLOUTS} rollouts "
            "of every problem or more; raise it, or match nothing (--match without a name)"
        )


def check_policies(runs: Sequence[Run], recorded: Path, out: Path) -> None:
    """Raise ValueError where a kept policy may be of another run, ConfigurationError where one that
    is to be kept cannot be made."""
    for run in runs:
        place = out / run.path.name
        if place.exists() and not is_recorded(recorded / run.path.name):
            raise ValueError(
                f"{place} is there, and no run of its name is recorded, so whose policy it is "
                "cannot be told: rename it, or record into another OUT"
            )
        if not place.exists() and has_weights(run):
            check_parts(run, ())


def check_sampled(
    arms: Mapping[str, Sequence[Run]], control: str, recorded: Path, sampling: Sampling
) -> None:
    """Raise ConfigurationError where a policy that is to be sampled cannot be made, or what it is
    sampled on. What several runs share is made once."""
    seen = set[str]()
    for run in runs_to_sample(arms, control, recorded, sampling):
        shared = json.dumps([start_of(run), run.config.get("data", {}).get("train")], default=str)
        if shared not in seen:
            check_parts(run, ("data", "reward"))
        seen.add(shared)


def runs_to_sample(
    arms: Mapping[str, Sequence[Run]], control: str, recorded: Path, sampling: Sampling
) -> list[Run]:
    """Runs of whose policies something will be sampled for certain."""

    def lacks(run: Run, step: int, wanted: Sequence[Evaluation]) -> bool:
        copy = recorded / run.path.name
        place = copy if is_recorded(copy) else run.path
        return any(find_recorded(place, step, each.name, sampling.n) is None for each in wanted)

    first = arms[control][0]
    start = [first] if lacks(first, 0, sampling.at_start()) else []
    runs = [run for each in arms.values() for run in each if has_weights(run)]
    return start + [run for run in runs if lacks(run, last_step(run), sampling.at_end(run))]


def add_evaluations(
    arms: Mapping[str, Sequence[Run]], control: str, recorded: Path, sampling: Sampling
) -> None:
    """Append to the recorded validations what they lack; see the module."""
    n, first = sampling.n, arms[control][0]
    starts = sample_start(first, recorded / first.path.name, sampling)
    for runs in arms.values():
        for run in runs:
            folder = recorded / run.path.name
            if start_of(run) != start_of(first):
                print(f"{folder.name}: starts or is validated otherwise than {first.path.name}")
            else:
                lacking = [row for row in starts if not find_recorded(folder, 0, row["name"], n)]
                append(folder, lacking)
            add_last(run, folder, sampling.at_end(run), n)
    for run in arms[control]:
        others = [same_seed(runs, run.seed) for arm, runs in arms.items() if arm != control]
        found = [load_run(recorded / each.path.name) for runs in others for each in runs]
        wanted = entropies_to_match(found, sampling.matched)
        add_rungs(run, recorded / run.path.name, wanted, n)


def sample_start(run: Run, folder: Path, sampling: Sampling) -> list[dict[str, Any]]:
    """Rows of the untrained policy at temperature 1 and those asked for, as they are recorded in
    the folder, or else sampled."""
    ways = sampling.at_start()
    found = [find_recorded(folder, 0, each.name, sampling.n) for each in ways]
    lacking = [each for each, row in zip(ways, found, strict=True) if row is None]
    sampled = sample_policy(run, lacking, trained=False) if lacking else []
    known = [row for row in found if row is not None]
    return known + [round_numbers(row_of(0, counts)) for counts in sampled]


def start_of(run: Run) -> list[Any]:
    """Settings that decide what the untrained policy scores, and by which reward."""
    policy, data = run.config.get("policy", {}), run.config.get("data", {})
    own = {key: value for key, value in policy.items() if key not in TRAINING_ONLY}
    reward = reward_identity(run.config.get("reward", {}), recorded_code(run.path))
    fresh = policy.get("path") == "random" or bool(policy.get("random_weights"))
    weights = run.seed if fresh else None  # that they follow
    return [own, weights, run.config.get("max_new_tokens"), data.get("validation"), reward]


def add_last(run: Run, folder: Path, wanted: Sequence[Evaluation], n: int) -> None:
    """Sample the final policy in the ways that are not recorded yet, and append them."""
    step = last_step(run)
    lacking = [each for each in wanted if find_recorded(folder, step, each.name, n) is None]
    if lacking and not has_weights(run):
        names = ", ".join(each.name for each in lacking)
        print(f"{folder.name}: not sampled, its weights are gone: {names}")
    elif lacking:
        rows = [row_of(step, counts) for counts in sample_policy(run, lacking)]
        append(folder, [round_numbers(row) for row in rows])
        print(f"{folder.name}: {', '.join(each.name for each in lacking)} with {n} rollouts")


def own_temperature(run: Run, n: int) -> list[Evaluation]:
    """The last training temperature, of a run whose temperature is not 1."""
    live = last_evaluation(run, "live")
    if live is None or not has_its_own(live["temperature"]):
        return []
    return [Evaluation("live", n=n, temperature=float(live["temperature"]))]


def last_evaluation(run: Run, name: str) -> Any:
    """The row of a run's last evaluation of a name; None without one."""
    rows = run.evaluations[run.evaluations["name"] == name]
    return None if rows.empty else rows.sort_values("rollout_step").iloc[-1]


def has_its_own(temperature: float) -> bool:
    """Whether an arm samples at another temperature than 1."""
    return abs(temperature - 1) > ITS_OWN


def same_seed(runs: Sequence[Run], seed: int) -> list[Run]:
    return [run for run in runs if run.seed == seed]


def entropies_to_match(runs: Sequence[Run], names: Sequence[str] = (LIVE,)) -> list[float]:
    """Entropies that runs end with in these evaluations, nats per token; in that at an own
    temperature where they have one."""
    rows = [last_evaluation(run, name) for run in runs for name in names]
    return [
        float(row["entropy"])
        for row in rows
        if row is not None and (row["name"] != LIVE or has_its_own(row["temperature"]))
    ]


def add_rungs(run: Run, folder: Path, entropies: Sequence[float], n: int) -> None:
    """Sample the control's final policy at temperatures whose entropies enclose each of these."""
    for entropy in entropies:
        known = entropies_by_temperature(folder, last_step(run))
        matcher = EntropyMatcher(entropy, known)
        while (temperature := matcher.next()) is not None:
            name = f"t{temperature:g}"
            add_last(run, folder, [Evaluation(name, n=n, temperature=temperature)], n)
            known = entropies_by_temperature(folder, last_step(run))
            if temperature not in known:  # the weights are gone
                return
            matcher.observe(temperature, known[temperature])


def entropies_by_temperature(folder: Path, step: int) -> dict[float, float]:
    """Entropies of recorded evaluations that others may be matched with, nats per token."""
    return {
        row["temperature"]: row["entropy_sum"] / row["tokens"]
        for row in read_rows(folder / VALIDATION)
        if row["rollout_step"] == step
        and row["temperature"] > 0
        and min(row["n"]) >= FEWEST_ROLLOUTS
        and (row.get("top_p", 1), row.get("top_k", 0)) == (1, 0)
    }


def copy_policies(runs: Sequence[Run], out: Path) -> None:
    """Write the final policy of every run that is not there yet as a model folder of its name."""
    for run in runs:
        if (out / run.path.name).exists():
            continue
        if not has_weights(run):
            print(f"{run.path.name}: no policy kept, its weights are gone")
            continue
        out.mkdir(parents=True, exist_ok=True)
        export(last_weights(run), out / run.path.name)


def find_recorded(folder: Path, step: int, name: str, n: int) -> dict[str, Any] | None:
    """The recorded row of an evaluation with at least n rollouts of every problem."""
    for row in read_rows(folder / VALIDATION):
        if (row["rollout_step"], row["name"]) == (step, name) and min(row["n"]) >= n:
            return dict(row)
    return None


def append(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Later rows of one step and name replace earlier ones when they are read."""
    if not rows:
        return
    pack(folder / VALIDATION, [*read_rows(folder / VALIDATION), *rows])


def row_of(step: int, counts: EvaluationCounts) -> dict[str, Any]:
    return {"rollout_step": step, **vars(counts)}


def sample_policy(
    run: Run, wanted: Sequence[Evaluation], trained: bool = True
) -> list[EvaluationCounts]:
    """A run's final policy, or the one it started from, on its validation problems.

    Raises ConfigurationError where what the run was trained with is gone, ValueError where its
    problems are no longer what it was validated on.
    """
    policy = rebuild(run, "policy")
    problems = validation_problems(run, policy)
    if trained:
        load_weights(policy, last_weights(run))
    return evaluate_policy(
        policy,
        problems,
        wanted,
        rebuild(run, "engine"),
        rebuild(run, "reward"),
        run.config["max_new_tokens"],
        seed=int(run.config["callbacks"]["pass_at_k"].get("seed", 0)),
    )
