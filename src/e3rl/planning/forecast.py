"""`debug=plan`: what a run amounts to in tokens, hours and memory, before weights are loaded."""

import copy
import itertools
import math
import re
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from e3rl.config.build import build
from e3rl.config.cautions import find_cautions
from e3rl.config.composition import ConfigurationError
from e3rl.engines.vllm_settings import AT_ONCE
from e3rl.planning.device_memory import (
    element_bytes,
    engine_bytes,
    engine_memory,
    find_capacity,
    forecast_memory,
)
from e3rl.planning.hours import (
    FORWARDS,
    GPUS,
    Decoding,
    Gpu,
    Passes,
    Sampled,
    rollout_seconds,
    sync_seconds,
    update_seconds,
)
from e3rl.planning.plan import ProblemCounts, RunPlan, count_validated, derive_plan
from e3rl.planning.processes import (
    count_processes,
    count_servers,
    count_shards,
    has_servers,
    split_over_ranks,
)
from e3rl.policy.adapters import UnknownTargetError
from e3rl.policy.model_cache import ModelFileError
from e3rl.policy.shape import KNOWN, ModelShape


def show_plan(cfg: DictConfig) -> None:
    """Print the plan of a checked configuration and its cautions; see `plan_ahead`."""
    print(plan_ahead(cfg).render())
    for caution in find_cautions(cfg):
        print(f"caution: {caution}")


def plan_ahead(cfg: DictConfig) -> RunPlan:
    """The plan of a run, with its costs.

    Raises ConfigurationError where the run would, as far as that can be known, and where the
    model's configuration is not found.
    """
    problems, shape = count_problems(cfg), read_shape(cfg)
    with build(cfg, "reward"):
        pass  # its files and packages are there
    plan = derive_plan(cfg, problems, shape)
    costs = forecast_work(cfg, plan.total_steps, problems.validation)
    if cfg.plan.tokens_per_s is None and (gpu := find_gpu(cfg)):
        costs |= forecast_time(cfg, shape, *gpu, plan.total_steps, problems.validation)
    return RunPlan(plan.quantities | costs | forecast_memory(cfg, shape), plan.total_steps)


def count_problems(cfg: DictConfig) -> ProblemCounts:
    """As many as the files hold, or as `plan` says where no files are given.

    Over-long prompts, which a run may drop, are among them: there is no tokenizer yet.
    """
    if not OmegaConf.missing_keys(cfg.data):
        return ProblemCounts.of(build(cfg, "data"))
    counts = ProblemCounts(cfg.plan.train_problems, cfg.plan.validation_problems)
    if counts.train < cfg.prompts_per_step:
        raise ConfigurationError(
            f"plan.train_problems={counts.train} are less than prompts_per_step="
            f"{cfg.prompts_per_step}: there would be no step"
        )
    return counts


def read_shape(cfg: DictConfig) -> ModelShape:
    """The shape of what `policy.path` names."""
    path, config = cfg.policy.path, cfg.plan.model_config
    try:
        lora = build(cfg, "policy.lora") if cfg.policy.get("lora") else None
        return ModelShape.of_path(path, config, cfg.policy.get("trust_remote_code", False), lora)
    except (UnknownTargetError, ModelFileError, ModuleNotFoundError) as error:
        raise ConfigurationError(str(error)) from error
    except (OSError, ValueError) as error:
        tried = f"plan.model_config={config}" if config else f"policy.path={path}"
        raise ConfigurationError(
            f"{tried}: no model configuration found there; give "
            f"plan.model_config=FOLDER/config.json (known without a hub: {', '.join(KNOWN)})"
        ) from error


def forecast_work(cfg: DictConfig, total_steps: int, validation_problems: int) -> dict[str, str]:
    """Steps, rollouts, tokens and hours, by label.

    Raises ConfigurationError for a mean length above the limit.
    """
    mean, limit, speed = cfg.plan.mean_tokens, cfg.max_new_tokens, cfg.plan.tokens_per_s
    if mean and mean > limit:
        raise ConfigurationError(
            f"plan.mean_tokens={mean} is above max_new_tokens={limit}: completions end there"
        )
    trained, validated, validations = _rollouts(cfg, total_steps, validation_problems)
    settings = cfg.module.settings
    time = f"give plan.gpu ({', '.join(GPUS)}) or plan.tokens_per_s to know it"
    if speed:
        most = (trained + validated) * limit / speed / 3600
        expected = f", {most * mean / limit:.1f} expected" if mean else ""
        time = f"at most {most:.1f} hours{expected}, at {speed:g} tokens per second"
    return {
        "optimiser steps": str(total_steps * settings.minibatches * settings.inner_epochs),
        "tokens trained on": _tokens(trained, limit, mean),
        "tokens validated": f"{_tokens(validated, limit, mean)}; {validated} rollouts in "
        f"{validations} validations",
        "time": time,
    }


def find_gpu(cfg: DictConfig) -> tuple[str, Gpu] | None:
    """The GPU that `plan.gpu` names, or this machine's, where its peaks are known.

    Raises ConfigurationError for a name that is not known.
    """
    if cfg.plan.gpu is not None:
        if cfg.plan.gpu not in GPUS:
            raise ConfigurationError(f"plan.gpu={cfg.plan.gpu}: known are {', '.join(GPUS)}")
        return cfg.plan.gpu, GPUS[cfg.plan.gpu]
    if cfg.trainer.accelerator == "cpu" or not torch.cuda.is_available():
        return None
    words = re.split(r"[ -]+", torch.cuda.get_device_name().lower())
    if "laptop" in words:
        return None  # slower than what else has this name
    own = {*words, *map("".join, itertools.pairwise(words))}  # rtx4090, of two words
    return next(((name, gpu) for name, gpu in GPUS.items() if name in own), None)


def forecast_time(
    cfg: DictConfig, shape: ModelShape, name: str, gpu: Gpu, steps: int, problems: int
) -> dict[str, str]:
    """Hours on GPUs of a kind, and what of a step takes how long; see `planning/hours.py`."""
    _, validated, validations = _rollouts(cfg, steps, problems)
    ranks, limit = count_processes(cfg), cfg.max_new_tokens
    decoding, passes = _decoding(cfg, shape), _passes(cfg)
    split, problems = split_over_ranks(cfg), count_validated(cfg, problems)
    servers = count_servers(cfg)
    engines = servers or ranks / split
    gpus = ranks + servers * decoding.shards if servers else ranks * decoding.shards // split
    prompt = min(cfg.plan.mean_prompt_tokens, cfg.data.max_prompt_tokens)

    def reckon(mean: float) -> tuple[dict[str, float], dict[str, float], list[float]]:
        prompts, rollouts = cfg.prompts_per_step, cfg.prompts_per_step * cfg.rollouts_per_prompt
        own = Sampled(rollouts / ranks, prompts / ranks, prompt, mean, limit)
        asked = Sampled(rollouts / engines, prompts / engines, prompt, mean, limit)
        shown = Sampled(validated / validations / engines, problems / engines, prompt, mean, limit)
        sampling = rollout_seconds(shape, gpu, decoding, asked)
        update = update_seconds(shape, gpu, passes, own)
        sync = sync_seconds(shape, gpu, passes, decoding.element_bytes)
        together = max if cfg.rollout.lookahead else sum
        step = together((sampling["total"], update["total"])) + sync
        validation = rollout_seconds(shape, gpu, decoding, shown)["total"] * validations
        return sampling, update, [step, sync, validation, (steps * step + validation) / 3600]

    sampling, update, (step, sync, validation, hours) = reckon(cfg.plan.mean_tokens or limit)
    beneath = ", beside the rollouts" if cfg.rollout.lookahead else ""
    return {
        "time": f"about {hours:.1f} hours on {gpus} {name}, at most "
        f"{reckon(limit)[2][3]:.1f}; reckoned from operations and bytes",
        "time: a step": f"{step:.1f} s: rollouts {sampling['total']:.1f} s, update "
        f"{update['total']:.1f} s{beneath}, sync {sync:.1f} s",
        "time: rollouts": f"weights are read in {sampling['weights']:.1f} s, the cache in "
        f"{sampling['cache']:.1f} s, operations take {sampling['operations']:.1f} s, launches "
        f"{sampling['launches']:.1f} s; {decoding.at_once} at once",
        "time: update": f"operations {update['operations']:.1f} s, their launches "
        f"{update['launches']:.1f} s, weights gathered beneath them {update['gathers']:.1f} s, "
        f"gradients added up {update['sums']:.1f} s",
        "time: validation": f"{validations} take {validation / 3600:.1f} hours",
    }


def _decoding(cfg: DictConfig, shape: ModelShape) -> Decoding:
    engine, weight_bytes = engine_memory(cfg, shape, find_capacity(cfg)), element_bytes(cfg)[0]
    if "settings" not in cfg.engine:
        return Decoding(weight_bytes, 1, cfg.engine.rows_per_call, eager=True)
    settings = cfg.engine.settings
    mean = cfg.plan.mean_tokens or cfg.max_new_tokens
    room = int(engine.cache_tokens / (cfg.plan.mean_prompt_tokens + mean))
    sent = cfg.engine.at_once * count_processes(cfg) if has_servers(cfg) else math.inf
    return Decoding(
        element_bytes=engine_bytes(cfg),
        shards=settings.tensor_parallel_size,
        at_once=max(1, int(min(settings.max_num_seqs or AT_ONCE[False], room, sent))),
        eager=settings.enforce_eager,
    )


def _passes(cfg: DictConfig) -> Passes:
    weight_bytes, compute_bytes = element_bytes(cfg)
    settings, ranks = cfg.module.settings, count_processes(cfg)
    steps = settings.minibatches * settings.inner_epochs
    old = settings.old_logprobs == "trainer" and steps > 1
    return Passes(
        compute_bytes=compute_bytes,
        weight_bytes=weight_bytes,
        shards=count_shards(cfg),
        ranks=ranks,
        epochs=settings.inner_epochs,
        forwards=int(old) + int(cfg.loss.kl_coef > 0),
        optimiser_steps=steps,
        tokens_per_pass=settings.tokens_per_microbatch,
        checkpointing=cfg.policy.get("gradient_checkpointing", False),
    )


def forecast_hours(cfg: DictConfig, total_steps: int, validation_problems: int) -> float:
    """Expected length of a run from `plan.tokens_per_s` and `plan.mean_tokens`."""
    trained, validated, _ = _rollouts(cfg, total_steps, validation_problems)
    return float((trained + validated) * cfg.plan.mean_tokens / cfg.plan.tokens_per_s / 3600)


def with_measured_speed(
    cfg: DictConfig,
    tokens_per_s: float,
    mean_tokens: float,
    update_s: float = 0.0,
    processes: int = 1,
) -> DictConfig:
    """The configuration with the speed that was measured, and the length of completions, in `plan`.

    A speed that the user gave stays; a length does not, since it was another policy's or a guess.
    All devices are as fast as those, and none waits for another; servers were measured all
    together, and more processes make them no faster.

    Args:
        cfg: a composed run.
        tokens_per_s: of sampling, of all processes that measured it together.
        mean_tokens: of a completion.
        update_s: seconds of one pass forward and backward per completion token, on one device.
        processes: that measured, a device each.
    """
    found: DictConfig = copy.deepcopy(cfg)
    # Rounded, 2048 would be 2050, and completions end at the limit.
    found.plan.mean_tokens = min(_rounded(mean_tokens), float(cfg.max_new_tokens))
    if found.plan.tokens_per_s is None:
        ranks = count_processes(cfg)
        engines = 1 if has_servers(cfg) else ranks / split_over_ranks(cfg) / processes
        sampling, update = 1 / (tokens_per_s * engines), _whole_update(cfg, update_s) / ranks
        beside = cfg.rollout.lookahead and "settings" in cfg.engine
        seconds = max(sampling, update) if beside else sampling + update
        found.plan.tokens_per_s = _rounded(1 / seconds)
    return found


def _whole_update(cfg: DictConfig, pass_s: float) -> float:
    """Seconds of an update where a pass forward and backward over its rollouts takes `pass_s`:
    those of all inner epochs, and the forward passes before them."""
    passes = _passes(cfg)
    forwards = FORWARDS + passes.checkpointing
    return pass_s * (passes.epochs + passes.forwards / forwards)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _rollouts(cfg: DictConfig, total_steps: int, validation_problems: int) -> tuple[int, int, int]:
    """Rollouts trained on, rollouts validated, and validations."""
    validations = 1 + total_steps // cfg.validate_every
    validated = count_validated(cfg, validation_problems) * sum(
        _rollouts_per_problem(evaluation, validations)
        for evaluation in cfg.callbacks.pass_at_k.evaluations
    )
    return total_steps * cfg.prompts_per_step * cfg.rollouts_per_prompt, validated, validations


def _rollouts_per_problem(evaluation: Any, validations: int) -> int:
    """Of an `Evaluation` node over a run, pilots for a wanted entropy left out."""
    n = evaluation.get("n", 16)
    last = n if evaluation.get("last_n") is None else evaluation.last_n
    return int(last + (0 if evaluation.get("last_only") else n * (validations - 1)))


def _tokens(rollouts: int, limit: int, mean: float | None) -> str:
    expected = f", {_millions(rollouts * mean)} expected at {mean:g} each" if mean else ""
    return f"at most {_millions(rollouts * limit)}{expected}"


def _millions(number: float) -> str:
    return f"{number / 1e6:,.2f} M"
