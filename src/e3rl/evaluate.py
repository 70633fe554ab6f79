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

import hydra
from omegaconf import DictConfig, OmegaConf

from e3rl.checkpoints.files import DamagedCheckpointError
from e3rl.config.composition import ConfigurationError, conf_dir, register_resolvers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from e3rl.callbacks.validation_schedule import Evaluation
    from e3rl.data.problems import ProblemSet
    from e3rl.evaluation.results import SampledSet
    from e3rl.evaluation.targets import Model
    from e3rl.rewards.pool import RewardPool

IRRELEVANT = {"workers", "memory_limit_mb"}  # settings of a reward that change no verdict

register_resolvers()


@hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="evaluate")
def main(cfg: DictConfig) -> float:
    """Evaluate; returns pass@1 of the first model, set and temperature."""
    from e3rl.config.build import silence_libraries

    silence_libraries()
    try:
        return evaluate(cfg)
    except (ConfigurationError, FileNotFoundError, DamagedCheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


def evaluate(cfg: DictConfig) -> float:
    """Sample what is not finished, model by model, then write and print."""
    from lightning import seed_everything

    from e3rl.config.build import build
    from e3rl.evaluation.results import TableSettings, write_results
    from e3rl.evaluation.settings import check_numbers, evaluations_of, table_ks
    from e3rl.evaluation.targets import find_models, load_problem_sets

    check_numbers(cfg)
    evaluations, models, sets = evaluations_of(cfg), find_models(cfg), load_problem_sets(cfg)
    wanted = TableSettings(
        list(cfg.ks), table_ks(cfg), choose_baseline(cfg, models), bool(cfg.latex)
    )
    out = Path(cfg.out)
    print(f"results: {out} (stopped, the same command goes on with out={out})")
    seed_everything(0, verbose=False)  # fresh weights (policy=random) are the same next time
    pool: RewardPool = build(cfg, "reward")
    found: list[SampledSet] = []
    with pool:
        for model in models:
            found += evaluate_model(cfg, model, sets, evaluations, pool)
            release_memory()
    text, summary = write_results(found, wanted, out)
    print(f"\n{text}\n\nper-problem counts: {out / 'validation.jsonl'}\ntables: {out / 'table.md'}")
    return float(summary[0]["pass@1"])


def evaluate_model(
    cfg: DictConfig,
    model: "Model",
    sets: "Mapping[str, ProblemSet]",
    evaluations: "Sequence[Evaluation]",
    pool: "RewardPool",
) -> "list[SampledSet]":
    """One model on every set, with an engine of its own that is closed before the next model's."""
    from e3rl.config.build import build
    from e3rl.evaluation.log import EvaluationLog, OtherSettingsError
    from e3rl.evaluation.results import SampledSet
    from e3rl.evaluation.sampling import sample_unfinished, sampling_settings
    from e3rl.evaluation.targets import folder_name

    policy, engine = model.policy(), build(cfg, "engine")
    asked = {each.name: each.entropy for each in evaluations if each.entropy is not None}
    found = []
    try:
        for name, problems in sets.items():
            folder = Path(cfg.out) / folder_name(model.label) / folder_name(name)
            settings = sampling_settings(
                policy, problems, evaluations, cfg.max_new_tokens, cfg.seed
            )
            with EvaluationLog(folder, settings | judging_settings(cfg)) as log:
                print(progress(model.label, name, len(problems), len(log.rows), evaluations))
                sample_unfinished(
                    *(log, policy, problems, evaluations, engine, pool),
                    max_new_tokens=cfg.max_new_tokens,
                    prompts_per_batch=cfg.prompts_per_batch,
                    seed=cfg.seed,
                )
                found.append(SampledSet(model.label, model.step, name, log.rows, asked))
    except OtherSettingsError as error:
        raise ConfigurationError(str(error)) from error
    finally:
        engine.close()
    return found


def judging_settings(cfg: DictConfig) -> dict[str, Any]:
    """What decides verdicts, and which engine samples; the rest is in `sampling_settings`."""
    reward = OmegaConf.to_container(cfg.reward, resolve=True)
    assert isinstance(reward, dict)
    dtype = OmegaConf.select(cfg, "engine.settings.dtype")
    return {
        "reward": {str(key): value for key, value in reward.items() if key not in IRRELEVANT},
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
