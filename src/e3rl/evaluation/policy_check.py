"""A configured policy, judged by its settings and its model's configuration, without weights."""

import math
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from e3rl.config.check import node_mistakes
from e3rl.config.composition import ConfigurationError
from e3rl.data.bad_rows import BadRowsError
from e3rl.data.problems import ProblemSet
from e3rl.data.prompt_lengths import find_bad_prompts
from e3rl.policy.model_cache import ModelFileError
from e3rl.policy.policy import DTYPES, Policy, resolve_path

BEFORE_STRETCHING = "original_max_position_embeddings"
ALREADY_STRETCHED = ("llama3", "longrope")
EVERY_MODEL = "Models are compared on all problems of a set: correct these, or take them out of it."


def check_policy(source: DictConfig, where: str, absent: str, max_new_tokens: int) -> None:
    """Raise ConfigurationError where the `policy` of a configuration could not be made.

    That is for unknown settings and wrong values, where transformers finds no model configuration,
    and for a model whose positions leave no room for `max_new_tokens` beside a prompt.

    Args:
        where: what messages begin with.
        absent: what is said of a path where there is no model.
    """
    try:
        policy = OmegaConf.to_container(source.policy, resolve=True)
    except (OmegaConfBaseException, ValueError) as error:
        raise ConfigurationError(f"{where}: its policy cannot be read: {error}") from error
    assert isinstance(policy, dict)
    if mistakes := [*node_mistakes(source.policy, "policy"), *_wrong_dtype(policy)]:
        raise ConfigurationError(f"{where}: {'; '.join(mistakes)}")
    path = str(policy.get("path", "embedded"))
    config = _configuration(path, bool(policy.get("trust_remote_code", False)), absent)
    room = context_length(config)
    if room is not None and max_new_tokens >= room:
        raise ConfigurationError(
            f"{where}: max_new_tokens={max_new_tokens} leaves no room for a prompt within the "
            f"{room:g} positions of {path}; lower it below that"
        )


def check_prompts(policy: Policy, problems: ProblemSet, where: str, max_new_tokens: int) -> None:
    """Raise ConfigurationError about every problem that a policy, for whose weights there is no
    use, cannot spell, or whose prompt leaves no room for `max_new_tokens`.

    `where` is what the message begins with.
    """
    room = context_length(policy.model.config)
    most = math.inf if room is None else int(room) - max_new_tokens
    bad, _ = find_bad_prompts(problems, policy.encode, most, "shorten it or lower max_new_tokens")
    if bad:
        raise ConfigurationError(str(BadRowsError(where, bad, len(problems), EVERY_MODEL)))


def check_positions(cfg: DictConfig, policy: Policy, longest_prompt: int) -> None:
    """Raise ConfigurationError where a run's longest rollout goes beyond the model's positions.

    Args:
        longest_prompt: tokens of it.
    """
    room, limit = context_length(policy.model.config), int(cfg.max_new_tokens)
    if room is None or longest_prompt + limit <= room:
        return
    left, leave_out = int(room) - longest_prompt, "leave out long prompts (data.max_prompt_tokens)"
    remedy = f"use max_new_tokens={left} or less, or {leave_out}" if left > 0 else leave_out
    raise ConfigurationError(
        f"policy.path={cfg.policy.get('path', policy.path)}: max_new_tokens={limit} behind the "
        f"longest prompt of {longest_prompt} tokens goes beyond the {room:g} positions that the "
        f"model was made for; {remedy}"
    )


def _wrong_dtype(policy: dict[Any, Any]) -> Iterator[str]:
    dtype = policy.get("dtype", "float32")
    if dtype not in DTYPES:
        yield f"policy.dtype={dtype!r}: choose one of {sorted(DTYPES)}"


def _configuration(path: str, trust_remote_code: bool, absent: str) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(resolve_path(path), trust_remote_code=trust_remote_code)
    except (ModelFileError, ModuleNotFoundError) as error:
        raise ConfigurationError(str(error)) from error
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{absent}: {error}") from error


def context_length(config: Any) -> float | None:
    """Positions that a model was made for, stretched as it says itself; None where it does not."""
    text = config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return None
    ropes = [getattr(text, name, None) for name in ("rope_parameters", "rope_scaling")]
    return max([positions, *(length for rope in ropes for length in _stretched(rope, positions))])


def _stretched(rope: Any, positions: int) -> Iterator[float]:
    """Positions by the factors of rotary embeddings, which may be set for each type of layer.

    Where they name the positions before, or are of a kind that always does, `positions` are those
    after.
    """
    if isinstance(rope, dict):
        kind, before = rope.get("rope_type", rope.get("type")), rope.get(BEFORE_STRETCHING)
        if isinstance(rope.get("factor"), int | float) and kind not in ALREADY_STRETCHED:
            yield float(rope["factor"]) * (before if isinstance(before, int) else positions)
        for inner in rope.values():
            yield from _stretched(inner, positions)
