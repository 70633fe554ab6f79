"""Measure pass@k, avg@n and maj@k of models on problem sets.

    e3rl evaluate ckpt_path=RUN [sets=[math_500,...]] [n=N] [out=FOLDER] [KEY=VALUE ...]

Writes the completions and counts of every problem as soon as it is finished, to
`<model>/<set>/{completions,problems}.jsonl`, and in the end `table.md`, `results.csv`,
`comparison.csv` and `pass_at_k.png` over all models and sets, `validation.jsonl` (per-problem
counts) and `summary.json`. Started again with the same `out`, finished problems are not sampled
again.
"""

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from e3rl.checkpoints.files import DamagedCheckpointError
from e3rl.config.command import configured, end_with_mistake
from e3rl.config.composition import ConfigurationError, to_plain_dict
from e3rl.evaluation.judging import reward_identity
from e3rl.process.output import NoPlaceError, check_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from e3rl.callbacks.validation_schedule import Evaluation
    from e3rl.data.problems import ProblemSet
    from e3rl.evaluation.results import SampledSet
    from e3rl.evaluation.targets import Model
    from e3rl.rewards.pool import RewardPool

MISTAKES = (FileNotFoundError, DamagedCheckpointError, NoPlaceError)  # beside ConfigurationError


@configured("evaluate", *MISTAKES)
def main(cfg: DictConfig) -> float:
    """Evaluate; returns pass@1 of the first model, set and temperature."""
    from e3rl.config.build import silence_libraries

    silence_libraries()
    try:
        return evaluate(cfg, HydraConfig.get().overrides.task)
    except ChildProcessError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from error


def evaluate(cfg: DictConfig, overrides: "Sequence[str]" = ()) -> float:
    """Sample what is not finished, model by model, then write and print.

    `overrides` are the arguments of the command line, which tell what was asked for from what is
    so by default. Raises ChildProcessError where one of several processes fails.
    """
    from e3rl.config.check import check_command
    from e3rl.evaluation.cautions import find_cautions
    from e3rl.evaluation.parts import parse_part
    from e3rl.evaluation.results import TableSettings, check_replaceable, write_results
    from e3rl.evaluation.settings import check_problems, check_settings, evaluations_of, table_ks
    from e3rl.evaluation.targets import check_overrides, find_models, load_problem_sets

    check_command(cfg, "evaluate", elsewhere=["policy"])  # `find_models` checks it
    check_settings(cfg)
    check_problems(cfg, overrides)
    check_folder("out=", Path(cfg.out))
    check_replaceable(Path(cfg.out))
    part = None if cfg.part is None else parse_part(str(cfg.part))
    if part is not None and overrides and not any(each.startswith("out=") for each in overrides):
        raise ConfigurationError(
            f"part={cfg.part} needs the folder that all parts share: give each the same out=FOLDER"
        )
    evaluations, models, sets = evaluations_of(cfg), find_models(cfg), load_problem_sets(cfg)
    check_overrides(overrides, models)
    wanted = TableSettings(list(cfg.ks), table_ks(cfg), choose_baseline(cfg, models), cfg.latex)
    for model in models:
        model.check_prompts(sets, cfg.max_new_tokens)
    if part is None or overrides:  # the processes of one command have none
        for caution in find_cautions(cfg, models):
            print(f"caution: {caution}")
    out = Path(cfg.out)
    if part is None:
        print(f"results: {out} (stopped, the same command goes on with out={out})")
        share_out(cfg)
    found = evaluate_models(cfg, models, sets, evaluations, part)
    if part is not None:
        return float("nan")
    text, summary = write_results(found, wanted, out)
    print(f"\n{text}\n\nper-problem counts: {out / 'validation.jsonl'}\ntables: {out / 'table.md'}")
    return float(summary[0]["pass@1"])


def share_out(cfg: DictConfig) -> None:
    """Have several processes sample, where that is asked for; this one takes their logs in.

    Raises ChildProcessError where one of them fails.
    """
    from e3rl.evaluation.processes import count_processes, run_parts, visible_devices

    devices = visible_devices()
    each = OmegaConf.select(cfg, "engine.settings.tensor_parallel_size") or 1
    count = count_processes(cfg.processes, devices, each)
    if count > 1:
        print(f"{count} processes sample, each its share of the problems")
        run_parts(evaluate_part, to_plain_dict(cfg), count, devices, each)


def evaluate_part(settings: "dict[str, Any]") -> None:
    """What a process does that samples a part; ends with code 2 for a mistake."""
    from e3rl.config.build import silence_libraries

    silence_libraries()
    try:
        evaluate(OmegaConf.create(settings))
    except (ConfigurationError, *MISTAKES) as error:
        end_with_mistake(str(error))


def evaluate_models(
    cfg: DictConfig,
    models: "Sequence[Model]",
    sets: "Mapping[str, ProblemSet]",
    evaluations: "Sequence[Evaluation]",
    part: "tuple[int, int] | None",
) -> "list[SampledSet]":
    """All models, one after the other, with the same workers for their rewards."""
    from lightning import seed_everything

    from e3rl.config.build import build

    seed_everything(0, verbose=False)  # fresh weights (policy=random) are the same next time
    pool: RewardPool = build(cfg, "reward")
    found: list[SampledSet] = []
    with pool:
        for model in models:
            found += evaluate_model(cfg, model, sets, evaluations, pool, part)
            release_memory()
    return found


def evaluate_model(
    cfg: DictConfig,
    model: "Model",
    sets: "Mapping[str, ProblemSet]",
    evaluations: "Sequence[Evaluation]",
    pool: "RewardPool",
    number: "tuple[int, int] | None" = None,
) -> "list[SampledSet]":
    """One model on every set, or part `number` of every set, with an engine of its own."""
    from e3rl.config.build import build
    from e3rl.evaluation.log import UnusableLogError
    from e3rl.evaluation.parts import Part, open_log
    from e3rl.evaluation.results import SampledSet
    from e3rl.evaluation.sampling import sample_unfinished, sampling_settings
    from e3rl.evaluation.targets import folder_name

    policy, engine = model.policy(), build(cfg, "engine")
    asked = {each.name: each.entropy for each in evaluations if each.entropy is not None}
    found = []
    try:
        for name, problems in sets.items():
            folder = Path(cfg.out) / folder_name(model.label) / folder_name(name)
            given = (evaluations, cfg.max_new_tokens, cfg.seed)
            settings = sampling_settings(policy, problems, *given) | judging_settings(cfg)
            part = None if number is None else Part(*number, folder)
            first = part is None or part.index == 1
            with open_log(folder, settings, problems, part) as log:
                if first:
                    print(progress(model.label, name, len(problems), len(log.rows), evaluations))
                sample_unfinished(
                    *(log, policy, problems, evaluations, engine, pool),
                    max_new_tokens=cfg.max_new_tokens,
                    prompts_per_batch=cfg.prompts_per_batch,
                    progress=first,
                    seed=cfg.seed,
                    part=part,
                )
                found.append(SampledSet(model.label, model.step, name, log.rows, asked))
    except UnusableLogError as error:
        raise ConfigurationError(str(error)) from error
    finally:
        engine.close()
    return found


def judging_settings(cfg: DictConfig) -> dict[str, Any]:
    """What decides verdicts, and which engine samples; the rest is in `sampling_settings`."""
    dtype = OmegaConf.select(cfg, "engine.settings.dtype")
    return {
        "reward": reward_identity(to_plain_dict(cfg.reward)),
        "engine": {"kind": cfg.engine["_target_"], "dtype": dtype},
    }


def progress(
    label: str, name: str, problems: int, finished: int, evaluations: "Sequence[Evaluation]"
) -> str:
    """What is about to be sampled, in a line."""
    samples = " + ".join(str(each.n) for each in evaluations)
    before = f", {finished} of them finished before" if finished else ""
    return f"{label} on {name}: {problems} problems x {samples} samples{before}"


def choose_baseline(cfg: DictConfig, models: "Sequence[Model]") -> str:
    """Label of the model that the others are compared with.

    Raises ConfigurationError where it is none of them.
    """
    labels = [model.label for model in models]
    if cfg.against is None:
        return labels[0]
    if str(cfg.against) not in labels:  # a label may look like a number
        raise ConfigurationError(
            f"against={cfg.against} is no model; there are {', '.join(labels)}"
        )
    return str(cfg.against)


def release_memory() -> None:
    """Give a model's memory back before the next one is loaded."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
