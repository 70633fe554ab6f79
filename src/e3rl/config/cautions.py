"""Settings that are valid and yet do nothing, or not what one may think, told before a run."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from hydra.utils import get_object
from omegaconf import DictConfig

from e3rl.budgets.dynamic_sampling import DynamicSampling
from e3rl.budgets.e3_rank import E3Rank
from e3rl.budgets.hora import Hora
from e3rl.budgets.pilot_commit import PilotCommit
from e3rl.budgets.posterior_budget import PosteriorBudget
from e3rl.budgets.sequential import Sequential
from e3rl.config.composition import to_plain_dict

UNRANKED = {"Uniform", "DynamicSampling", "Sequential", "PilotCommit"}  # no difficulty ranks
OF_GROUPS = ("GroupNormalized", "Centred", "LeaveOneOut", "MaximumLikelihood", "PassAtKAdvantage")
TINY = ("embedded", "embedded_arithmetic", "random")  # policies of half a million weights
COLDEST_OF_SERVERS, HOTTEST_OF_SERVERS = 0.01, 2.0  # temperatures
SERVER_ENGINES = ("VLLMServerEngine", "VLLMRayEngine")
SEVERAL_STEPS = "set module.settings.minibatches (or inner_epochs) to 2 or more"


def find_cautions(cfg: DictConfig) -> list[str]:
    """One line per setting that is inert in this configuration, with the reason and a remedy."""
    plain = to_plain_dict(cfg)
    found = (
        *(_inert_ratios, _wide_clip, _inert_weights, _inert_budgets, _inert_spread, _inert_shaping),
        *(_mismatch, _lookahead, _rounded_updates, _slow_on_gpus),
        *(_limits_of_servers, _inert_offload),
    )
    return [caution for of in found for caution in of(plain)]


def _inert_ratios(plain: dict[str, Any]) -> Iterator[str]:
    """What acts on importance ratios, where there is one optimiser step per batch."""
    settings, loss = plain["module"]["settings"], plain["loss"]
    steps = settings["minibatches"] * settings["inner_epochs"]
    if steps > 1 or settings["old_logprobs"] == "sampler":
        return
    reason = f"with one optimiser step per batch every importance ratio is 1: {SEVERAL_STEPS}"
    surrogate, rule = target_name(loss["surrogate"]), target_name(loss["exploration"])
    if surrogate in ("gspo", "cispo"):
        yield f"loss.surrogate={surrogate} has the gradient of the clipped surrogate; {reason}"
    if rule == "KLCov":
        yield f"loss.exploration=KLCov has neither value nor gradient; {reason}"
    elif surrogate == "clipped" and loss["surrogate"]["clip_high"] > loss["surrogate"]["clip_low"]:
        high = loss["surrogate"]["clip_high"]
        yield f"loss.surrogate.clip_high={high} (clip-higher) never acts; {reason}"


def _wide_clip(plain: dict[str, Any]) -> Iterator[str]:
    """A bound for ratios of tokens, where those of whole rollouts are clipped, or one for these
    where those of tokens are."""
    surrogate = plain["loss"]["surrogate"]
    if target_name(surrogate) == "gspo" and surrogate["clip_high"] > 0.1:
        yield (
            f"loss.surrogate.clip_high={surrogate['clip_high']} hardly ever acts: gspo clips a "
            f"geometric mean over a rollout's tokens (clip_low={surrogate['clip_low']}); use "
            "loss/exploration=none, or another loss with clip_higher"
        )
    if target_name(surrogate) == "clipped" and surrogate["clip_high"] < 0.05:
        yield (
            f"loss.surrogate.clip_high={surrogate['clip_high']} is a bound for the mean of a whole "
            f"rollout (loss=gspo), and loss.surrogate=clipped has single tokens: 0.2 is published"
        )


def _inert_weights(plain: dict[str, Any]) -> Iterator[str]:
    """What weighs prompts or rollouts, where all weigh the same anyway."""
    mean_size, advantage = mean_group_size(plain), plain["advantage"]
    rule = target_name(advantage)
    of_groups = rule in OF_GROUPS or advantage.get("baseline") == "group"
    if mean_size < 2 and of_groups:
        yield (
            f"rollouts_per_prompt={plain['rollouts_per_prompt']} trains nothing: advantage={rule} "
            "compares the rollouts of a prompt; use 2 or more, or advantage=reinforce_pp"
        )
    if plain["loss"]["prompt_weight"] == "prompt" and target_name(plain["budget"]) == "Uniform":
        yield (
            "loss.prompt_weight=prompt changes nothing: budget=uniform gives every prompt the same "
            "number of rollouts already"
        )
    if rule == "PassAtKAdvantage":
        largest = max(advantage["k"], advantage.get("final_k") or 0)
        if min(largest, mean_size - 1) <= 1:
            yield (
                "advantage=pass_at_k is GRPO here: a group of n rollouts uses min(k, n - 1), with "
                f"k={largest} and groups of {mean_size:g} that is at most 1: raise both"
            )


def _inert_budgets(plain: dict[str, Any]) -> Iterator[str]:
    """Rules that have nothing to go by, or nothing to move."""
    budget, mean_size = plain["budget"], plain["rollouts_per_prompt"]
    rule = target_name(budget)
    selects = rule in ("Mopps", "Vcrl")
    if plain["epochs"] == 1 and goes_by_history(budget):
        chooses = "draws prompts blindly" if selects else "is uniform"
        yield (
            f"budget={rule} {chooses} with epochs=1: nothing is known of a prompt before its first "
            "visit; use 2 or more, or a rule with rounds (sequential, pilot_commit, hora with "
            "mode=pilot)"
        )
    for name in ("n_low", "n_high", "per_round", "pilot"):
        if budget.get(name) == mean_size:
            yield (
                f"budget={rule} is uniform: budget.{name} is rollouts_per_prompt={mean_size}, so "
                "there are no rollouts to move; change one of the two"
            )
    if rule == "E3Rank" and budget["n_update"] == 0 and not _wants_ranks(plain):
        yield "budget=E3Rank is uniform: with n_update=0 its bounds never widen"


def count_selected(budget: Mapping[str, Any], prompts_per_step: int) -> int:
    """Prompts of a step that a rule gives rollouts to: all, but for selectors."""
    return int(max(1, round(budget.get("selected_share", 1) * prompts_per_step)))


def mean_group_size(cfg: Mapping[str, Any]) -> float:
    """Rollouts of a prompt that gets some, on average: rollouts_per_prompt, but for selectors."""
    prompts = cfg["prompts_per_step"]
    total = prompts * cfg["rollouts_per_prompt"]
    return float(total / count_selected(cfg["budget"], prompts))


def goes_by_history(budget: Mapping[str, Any]) -> bool:
    """Whether a rule knows of a prompt what its earlier visits showed, and nothing else."""
    rule = _class_of(budget)
    if not isinstance(rule, type):
        return False
    if issubclass(rule, Hora):
        return bool(budget["mode"] == "history")
    return issubclass(rule, E3Rank | PosteriorBudget)


def decides_in_rounds(budget: Mapping[str, Any]) -> bool:
    """Whether a rule goes by the rewards of the step itself, round by round."""
    rule = _class_of(budget)
    if not isinstance(rule, type):
        return False
    if issubclass(rule, Hora):
        return bool(budget.get("mode") == "pilot")
    return issubclass(rule, DynamicSampling | PilotCommit | Sequential)


def _class_of(node: Mapping[str, Any]) -> Any:
    """What a node makes; None for what cannot be imported, which is told elsewhere."""
    try:
        return get_object(str(node["_target_"]))
    except (ImportError, ValueError):
        return None


def _inert_spread(plain: dict[str, Any]) -> Iterator[str]:
    """Temperatures of single rollouts that come out the same."""
    spread, budget = plain["temperature"].get("spread"), target_name(plain["budget"])
    idle = "temperature.spread=ByDifficulty changes nothing"
    if target_name(spread) == "ByDifficulty" and budget in UNRANKED:
        yield (
            f"{idle}: budget={budget} does not rank prompts by difficulty; choose budget=e3_rank, "
            "knapsack, neyman or hora"
        )
    elif target_name(spread) == "ByDifficulty" and plain["epochs"] == 1:
        yield f"{idle} with epochs=1: no prompt has a rank before its second visit; use 2 or more"
    if target_name(spread) == "Ladder" and mean_group_size(plain) < len(spread["rungs"]):
        yield (
            f"temperature.spread=Ladder has {len(spread['rungs'])} rungs, and a group of "
            f"{mean_group_size(plain):g} uses the first ones only: raise rollouts_per_prompt, or "
            "leave rungs out"
        )


def _wants_ranks(plain: dict[str, Any]) -> bool:
    """Whether something else than the budget goes by the ranks of its prompts."""
    shapes = target_name(plain["shaping"]) == "LengthShaping"
    return shapes or target_name(plain["temperature"].get("spread")) == "ByDifficulty"


def _inert_shaping(plain: dict[str, Any]) -> Iterator[str]:
    """A length-aware reward without an easy prompt to act on."""
    if target_name(plain["shaping"]) != "LengthShaping":
        return
    if (budget := target_name(plain["budget"])) in UNRANKED:
        yield (
            f"shaping=length changes nothing: budget={budget} does not rank prompts by difficulty, "
            "so none is easy; choose budget=e3_rank (with budget.n_update=0 it is uniform)"
        )
    elif plain["epochs"] == 1:
        yield (
            "shaping=length changes nothing with epochs=1: no prompt has a rank before its second "
            "visit; use 2 or more"
        )


def _mismatch(plain: dict[str, Any]) -> Iterator[str]:
    """A correction without anything to correct, and something to correct without a correction."""
    ahead = plain["rollout"]["lookahead"] > 0
    corrected = plain["loss"]["correction"] is not None
    bypass = plain["module"]["settings"]["old_logprobs"] == "sampler"
    same_code = target_name(plain["engine"]) == "TransformersEngine"
    if corrected and same_code and not ahead and plain["trainer"]["precision"] == "32-true":
        yield (
            "loss.correction changes nothing: engine=transformers samples with the trainer's own "
            "model in the same precision, and rollouts are not older than it"
        )
    if ahead and not (corrected or bypass):
        yield (
            f"rollout.lookahead={plain['rollout']['lookahead']} trains on rollouts of an older "
            "policy as if they were its own: choose loss/correction=tis (or another), or "
            "module.settings.old_logprobs=sampler"
        )


def _lookahead(plain: dict[str, Any]) -> Iterator[str]:
    """Look-ahead that hides nothing, keeps awake what should sleep, or comes before its time."""
    n = plain["rollout"]["lookahead"]
    if n == 0:
        return
    if any(target_name(node) == "Disturbance" for node in plain["callbacks"].values()):
        yield (
            f"callbacks=disturbed shows {n} step{'s' * (n > 1)} late with rollout.lookahead={n}: "
            "the step that it is set for is sampled before the policy changes; use "
            "rollout.lookahead=0"
        )
    engine = plain["engine"]
    if target_name(engine) == "TransformersEngine":
        yield (
            f"rollout.lookahead={n} saves no time: engine=transformers samples with the trainer's "
            "own weights, before the update; use engine=vllm"
        )
    elif target_name(engine) == "VLLMEngine" and n > 1:
        yield (
            f"rollout.lookahead={n} saves no more time than 1 does: an engine in this process "
            f"takes new weights only once it has sampled all before, and rollouts are {n} updates "
            "old; use 1, or engine=vllm_server"
        )
    if engine.get("settings", {}).get("sleep_level", 0):
        yield (
            f"engine.settings.sleep_level={engine['settings']['sleep_level']} frees no memory for "
            f"the update: with rollout.lookahead={n} the engine is awake during it; use 0"
        )


def _limits_of_servers(plain: dict[str, Any]) -> Iterator[str]:
    """Temperatures on the way that vLLM's server does not take."""
    if target_name(plain["engine"]) not in SERVER_ENGINES:
        return
    where = "temperature.rule" if "rule" in plain["temperature"] else "temperature"
    rule = plain["temperature"].get("rule", plain["temperature"])
    hottest = f"vLLM's server samples at up to {HOTTEST_OF_SERVERS:g}: a run that gets there stops"
    low, high = rule.get("bounds") or (0, 0)
    if 0 < low < COLDEST_OF_SERVERS:
        yield (
            f"{where}.bounds begins at {low}, and vLLM's server samples at {COLDEST_OF_SERVERS:g} "
            f"and more: a run that gets below stops; use {where}.bounds=[0.3,2.0]"
        )
    if high > HOTTEST_OF_SERVERS:
        yield f"{where}.bounds ends at {high}, and {hottest}; use {where}.bounds=[0.3,2.0]"
    rungs = plain["temperature"].get("spread", {}).get("rungs") or [1]
    for name in ("temperature", "temperatures"):
        stages = rule.get(name, 0)
        stage = max(stages if isinstance(stages, list) else [stages]) * max(rungs)
        if stage > HOTTEST_OF_SERVERS:
            yield f"{where}.{name} goes up to {stage:g}, and {hottest}; use lower ones"


def _rounded_updates(plain: dict[str, Any]) -> Iterator[str]:
    """Trained weights of so few bits that most updates leave them as they are."""
    policy, precision = plain["policy"], plain["trainer"]["precision"]
    adapted = policy.get("lora") is not None
    if precision in ("bf16-true", "16-true"):
        setting, bits = f"trainer.precision={precision}", precision
    elif policy.get("dtype") in ("bfloat16", "float16") and not adapted:
        setting, bits = f"policy.dtype={policy['dtype']}", policy["dtype"]
    else:
        return
    trained, also = ("adapters", "") if adapted else ("weights", "policy.dtype=float32 and ")
    least = 512 if bits.startswith("bf") else 4096  # half a unit in the last place, at most
    yield (
        f"{setting} trains {trained} of 16 bits: updates below 1/{least} of a weight are rounded "
        f"away, most of them with lr={plain['module']['optimizer']['lr']}; use {also}"
        "trainer.precision=bf16-mixed"
    )


def _slow_on_gpus(plain: dict[str, Any]) -> Iterator[str]:
    """Precision and launching of kernels that a CPU does not mind and a GPU does.

    Tiny policies are left out: they take no time either way.
    """
    trainer, policy, engine = plain["trainer"], plain["policy"], plain["engine"]
    planned = plain["plan"]["gpu"] or plain["plan"]["gpu_gib"]
    if not (planned or _on_gpu(trainer["accelerator"])) or policy["path"] in TINY:
        return
    if trainer["precision"] == "32-true" and policy.get("dtype") == "float32":
        yield (
            "trainer.precision=32-true computes the update in float32, several times slower on a "
            "GPU than bfloat16: use trainer.precision=bf16-mixed"
        )
    settings = engine.get("settings")
    if settings is None:
        return
    if settings["dtype"] == "float32" or (
        settings["dtype"] == "auto" and policy.get("dtype") == "float32"
    ):
        yield (
            f"engine.settings.dtype={settings['dtype']} samples in float32, as the weights are, "
            "with half the room in the cache and several times slower on a GPU: use "
            "engine.settings.dtype=bfloat16 with loss/correction=tis"
        )
    if settings["enforce_eager"]:
        yield (
            "engine.settings.enforce_eager=true launches every kernel of a decoding step by "
            "itself, which a GPU waits for: false compiles the model at the first start and "
            "captures CUDA graphs"
        )


def _inert_offload(plain: dict[str, Any]) -> Iterator[str]:
    """States that are to leave a device which is the machine itself."""
    accelerator = plain["trainer"]["accelerator"]
    if plain["module"]["settings"]["offload_optimizer"] and not _on_gpu(accelerator):
        yield (
            "module.settings.offload_optimizer=true changes nothing on a CPU, whose memory has the "
            "optimiser's states anyway: leave it out"
        )


def _on_gpu(accelerator: str) -> bool:
    """Whether Lightning would train on an NVIDIA or AMD GPU."""
    return accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available())


def target_name(node: Mapping[str, Any] | None) -> str | None:
    """Class or function that a node makes."""
    return None if node is None else str(node["_target_"]).split(".")[-1]
