"""Settings that must agree: a number with its copies, a budget rule with what it is to share."""

import math
from typing import Any

from omegaconf import OmegaConf

from e3rl.config.build import build
from e3rl.config.cautions import count_selected, decides_in_rounds, target_name
from e3rl.config.composition import ConfigurationError
from e3rl.config.copies import COPIES
from e3rl.planning.processes import count_processes

PLANNED = (  # copies of what plan and forecast go by
    *("data.prompts_per_step", "data.lookahead", "callbacks.temperature.lookahead"),
    *("callbacks.budget.rollouts_per_prompt", "callbacks.rollout.max_new_tokens"),
)


def check_agreement(cfg: Any) -> None:
    """Raise ConfigurationError where settings of a run contradict each other."""
    _check_copies(cfg)
    _check_processes(cfg)
    _check_group_size(cfg)
    _check_abort(cfg)
    _check_disturbance(cfg)


def _check_copies(cfg: Any) -> None:
    """Refuse a copy that is another number: the run would go by it, and the plan would not."""
    for copy, source in ((copy, COPIES[copy]) for copy in PLANNED):
        own, meant = OmegaConf.select(cfg, copy), OmegaConf.select(cfg, source)
        if own is not None and own != meant:
            raise ConfigurationError(
                f"{copy}={own} is another number than {source}={meant}, which the plan goes by: "
                f"use {source}={own}"
            )


def _check_processes(cfg: Any) -> None:
    """Refuse steps that the processes cannot share."""
    count = count_processes(cfg)
    if cfg.prompts_per_step % count:
        raise ConfigurationError(
            f"prompts_per_step={cfg.prompts_per_step} cannot be shared equally by {count} "
            f"processes (trainer.devices x trainer.num_nodes): use a multiple of {count}"
        )
    if count > 1 and decides_in_rounds(cfg.budget):
        raise ConfigurationError(
            f"budget={target_name(cfg.budget)} decides round by round over all prompts, which "
            f"{count} processes cannot share: use trainer.devices=1 or a budget with all counts "
            "known beforehand"
        )
    if (selected := count_selected(cfg.budget, cfg.prompts_per_step)) < count:
        raise ConfigurationError(
            f"budget.selected_share={cfg.budget.selected_share} gives rollouts to {selected} of "
            f"{cfg.prompts_per_step} prompts, which leaves some of {count} processes without any: "
            "raise it or prompts_per_step"
        )


def read_bounds(budget: Any, prompts_per_step: int) -> tuple[str, float, float]:
    """The setting that bounds a rule's mean group size from below, and both bounds, in rollouts
    per prompt of a step."""
    lowest = next(
        (name for name in ("per_round", "pilot", "selected_share") if name in budget), "n_low"
    )
    low = budget.get(lowest, 1)
    if lowest == "selected_share":  # two rollouts of every selected prompt
        low = 2 * count_selected(budget, prompts_per_step) / prompts_per_step
    elif target_name(budget) == "DynamicSampling":  # of groups of one none is mixed
        low = 2
    return lowest, low, budget.get("n_high", math.inf)


def _check_group_size(cfg: Any) -> None:
    lowest, low, high = read_bounds(cfg.budget, cfg.prompts_per_step)
    size = cfg.rollouts_per_prompt
    if low <= size <= high:
        return
    if target_name(cfg.budget) == "DynamicSampling":
        raise ConfigurationError(
            f"budget=dynamic_sampling looks for groups of right and wrong answers, and "
            f"rollouts_per_prompt={size} makes none: use 2 or more"
        )
    if lowest == "selected_share":
        raise ConfigurationError(
            f"rollouts_per_prompt={size} makes fewer than two rollouts for each of the prompts "
            f"that budget.selected_share={cfg.budget.selected_share} selects of "
            f"{cfg.prompts_per_step}: use rollouts_per_prompt={math.ceil(low)} or more, or a "
            "smaller share"
        )
    raise ConfigurationError(
        f"rollouts_per_prompt={size} must lie between budget.{lowest}={low} and "
        f"budget.n_high={high}: change one of the three"
    )


def _check_abort(cfg: Any) -> None:
    """Refuse a rule that would stop no rollout, or miss where one ends."""
    if not OmegaConf.select(cfg, "callbacks.rollout.abort"):
        return
    abort = build(cfg, "callbacks.rollout.abort")
    try:
        policy = cfg.policy
        abort.check(cfg.max_new_tokens, policy.get("stop") or (), policy.get("prefill") or "")
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def _check_disturbance(cfg: Any) -> None:
    """Refuse a disturbance of weights that adapters freeze, before any model is loaded."""
    if cfg.callbacks.get("disturbance") and cfg.policy.get("lora"):
        raise ConfigurationError(
            "callbacks=disturbed scales model.norm of the policy, which adapters freeze, so that "
            "checkpoints would not have it: use policy/lora=none, or leave it out "
            "(callbacks=default)"
        )
