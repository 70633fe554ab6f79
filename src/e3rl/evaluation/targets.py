"""What `e3rl.evaluate` is asked for: models by label, problem sets by name.

All of it is found and checked before anything is sampled: a misspelt third model should not be
known after hours spent on the first two.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import DictConfig, OmegaConf

from e3rl.checkpoints.files import PATTERN, checkpoints, newest_sound
from e3rl.config.build import build, check_rewards
from e3rl.config.check import node_mistakes
from e3rl.config.composition import ConfigurationError, check_given, conf_dir, run_folder_of
from e3rl.config.saved import read_saved_configuration
from e3rl.data.problems import ProblemSet
from e3rl.engines.randomness import preserve_torch_rng
from e3rl.evaluation.policy_check import check_policy, check_prompts
from e3rl.evaluation.sampling import load_weights
from e3rl.ledger.files import CONFIG
from e3rl.policy.policy import Policy

FROM_FILE = "e3rl.data.problems.load_problems"
LONGEST_NAME = 200  # bytes; file systems take 255


@dataclass(frozen=True)
class Model:
    """A model to sample: a configuration with its `policy`, and weights of a run to put into it."""

    label: str
    source: DictConfig
    checkpoint: Path | None = None

    def check(self, max_new_tokens: int) -> None:
        """Raise ConfigurationError where the policy could not be made, as far as can be known
        without its weights."""
        path = OmegaConf.select(self.source, "policy.path")
        if self.checkpoint is None:
            absent = (
                f"models: {path} is no checkpoint, run folder, model folder or hub name within "
                "reach"
            )
        else:
            absent = (
                f"{self.checkpoint} belongs to policy.path={path}, which is no model folder or "
                "hub name within reach; put it back there, or correct it in the run's config.yaml"
            )
        check_policy(self.source, f"model {self.label}", absent, max_new_tokens)

    def check_prompts(self, sets: Mapping[str, ProblemSet], max_new_tokens: int) -> None:
        """Raise ConfigurationError for problems that the policy cannot read, or has no room for.

        The policy is made for it, without its weights where these can be left out.
        """
        with preserve_torch_rng():
            policy: Policy = build(self.source, "policy", in_parts=True)
        for name, problems in sets.items():
            where = f"model {self.label}, problems {name}"
            check_prompts(policy, problems, where, max_new_tokens)

    @property
    def step(self) -> int:
        """Finished rollout steps of the checkpoint; 0 where its name tells none."""
        found = PATTERN.search(self.checkpoint.name) if self.checkpoint else None
        return int(found[1]) if found else 0

    def policy(self) -> Policy:
        """Load it; fresh weights under a run's adapters follow its seed."""
        if self.checkpoint is None:
            return cast(Policy, build(self.source, "policy"))
        with preserve_torch_rng():
            torch.manual_seed(self.source.get("seed", 0))
            policy: Policy = build(self.source, "policy")
        load_weights(policy, self.checkpoint)
        return policy


def find_models(cfg: DictConfig) -> list[Model]:
    """The models of `models`, or the one of `ckpt_path` and `policy`.

    Raises ConfigurationError for a model that is not there or has no room for `max_new_tokens`,
    for settings that no policy has, for labels that are not unique, and for `models`, `ckpt_path`
    or `sets` that are empty; FileNotFoundError or DamagedCheckpointError for a run without a sound
    checkpoint.
    """
    for setting in ("ckpt_path", "models", "sets"):
        check_given(setting, cfg.get(setting))
    models = _read_models(cfg) if cfg.models else [_read_model(cfg)]
    for model in models:
        model.check(cfg.max_new_tokens)
    return models


def check_overrides(overrides: Sequence[str], models: Sequence[Model]) -> None:
    """Raise ConfigurationError for overrides of `policy` beside runs alone: they have their own."""
    given = [each for each in overrides if re.match(r"[+~]*policy\b", each)]
    if given and all(model.checkpoint for model in models):
        raise ConfigurationError(
            f"{', '.join(given)}: a run is evaluated with the policy of its own config.yaml; leave "
            "it out, or write the weights to a folder (e3rl export RUN OUT) and give "
            "policy=pretrained policy.path=OUT in place of the run"
        )


def _read_models(cfg: DictConfig) -> list[Model]:
    if cfg.ckpt_path:
        raise ConfigurationError(
            f"ckpt_path={cfg.ckpt_path} beside models: give the checkpoint as one of the models"
        )
    given = _as_entries(cfg.models)
    entries = list(given.values()) if isinstance(given, dict) else given
    found = [_model(cfg, entry) for entry in entries]
    labels = [str(label) for label in given] if isinstance(given, dict) else _labels(found)
    models = [
        Model(label, model.source, model.checkpoint)
        for label, model in zip(labels, found, strict=True)
    ]
    _check_unique([folder_name(model.label) for model in models], "models={LABEL: PATH, ...}")
    return models


def _as_entries(given: Any) -> dict[Any, Any] | list[Any]:
    """What a setting holds: entries by label or in order; a single one may come without a list."""
    if OmegaConf.is_config(given):
        found = OmegaConf.to_container(given, resolve=True)
        assert isinstance(found, dict | list)
        return found
    return [] if given is None else [given]


def _read_model(cfg: DictConfig) -> Model:
    if not cfg.ckpt_path:
        if OmegaConf.is_missing(cfg.policy, "path"):
            raise ConfigurationError(
                "policy.path is missing: give policy.path=MODEL, or models=[MODEL, ...]"
            )
        return Model(_name_of(cfg.policy.path), cfg)
    model = model_of_run(newest_sound(checkpoint_path(cfg.ckpt_path)))
    assert model.checkpoint is not None
    return Model(model.checkpoint.stem, model.source, model.checkpoint)


def _model(cfg: DictConfig, entry: Any) -> Model:
    """One entry of `models`, with the shortest label."""
    settings = dict(entry) if isinstance(entry, Mapping) else {"path": entry}
    path = settings.get("path")
    if not isinstance(path, str):
        raise ConfigurationError(f"models: {entry!r} names no model: give a path or a hub name")
    if is_run(Path(path)):
        if len(settings) > 1:
            raise ConfigurationError(
                f"models: {path} is a run's, whose policy settings are its own; leave out "
                f"{', '.join(key for key in settings if key != 'path')}"
            )
        return model_of_run(newest_sound(checkpoint_path(path)))
    source = OmegaConf.create({"policy": OmegaConf.to_container(cfg.policy, resolve=True)})
    source.policy = OmegaConf.merge(source.policy, settings)
    return Model(_name_of(path), source)


def _name_of(path: str) -> str:
    """What a model is called: the last part of its path, of a folder such as `..` its own name."""
    name = Path(path).name
    return name if name.strip(".") else Path(path).resolve().name


def is_run(path: Path) -> bool:
    """Whether a path means a checkpoint, a checkpoints folder or a run folder."""
    folder = run_folder_of(path)
    named = path.suffix == ".ckpt" or path.name == "checkpoints"
    return named or (folder / "checkpoints").is_dir() or bool(checkpoints(path))


def model_of_run(checkpoint: Path) -> Model:
    """The policy that a run's configuration describes, with a checkpoint's weights.

    Raises FileNotFoundError where the configuration is not there, ConfigurationError where it has
    no policy.
    """
    saved = run_folder_of(checkpoint) / CONFIG
    if not saved.is_file():
        raise FileNotFoundError(
            f"{saved} is missing: it says which model the checkpoint belongs to; keep "
            "checkpoints in their run folder"
        )
    source = OmegaConf.create(read_saved_configuration(saved))
    if not (isinstance(source, DictConfig) and OmegaConf.is_dict(source.get("policy"))):
        raise ConfigurationError(
            f"{saved} has no policy: it is not a run's; keep checkpoints in their run folder"
        )
    return Model(str(source.get("name", run_folder_of(checkpoint).name)), source, checkpoint)


def _labels(models: list[Model]) -> list[str]:
    """Names of runs and models, with seed and step of runs where names alone are not unique."""
    named = [model.label for model in models]
    if len(set(named)) == len(named):
        return named
    seeds = [
        f"{m.label}-seed{m.source.seed}" if m.checkpoint and "seed" in m.source else m.label
        for m in models
    ]
    if len(set(seeds)) == len(seeds):
        return seeds
    return [
        f"{seed}-{model.checkpoint.stem}" if model.checkpoint else seed
        for seed, model in zip(seeds, models, strict=True)
    ]


def checkpoint_path(ckpt_path: str) -> Path:
    """A checkpoint file, or the checkpoints folder of a run folder."""
    path = Path(ckpt_path)
    return path if path.suffix == ".ckpt" else run_folder_of(path) / "checkpoints"


def load_problem_sets(cfg: DictConfig) -> dict[str, ProblemSet]:
    """The problem sets of `sets` by name, or the one of `problems`, their gold answers checked.

    Raises ConfigurationError for one that cannot be loaded or has answers that nothing matches.
    """
    given = _as_entries(cfg.sets)
    if isinstance(given, dict):
        nodes = [(str(name), _problems_node(entry)[1]) for name, entry in given.items()]
    else:
        nodes = [_problems_node(entry) for entry in given]
    nodes = nodes or [(set_name(cfg.problems), cfg.problems)]
    _check_unique([folder_name(name) for name, _ in nodes], "+problems@sets.NAME=...")
    return {name: _load_set(name, node, cfg) for name, node in nodes}


def _load_set(name: str, node: Mapping[str, Any], cfg: DictConfig) -> ProblemSet:
    problems = ProblemSet.of(build(OmegaConf.create({"problems": node}), "problems"), name)
    own = cfg.reward.get("answer_format")
    judged = f"judged by {cfg.reward['_target_'] if own is None else f'reward.answer_format={own}'}"
    check_rewards(cfg, problems, f"problems {name}, {judged}")
    return problems


def _problems_node(entry: Any) -> tuple[str, Mapping[str, Any]]:
    """Name and settings of an entry of `sets`: of conf/problems, of a file, or as given."""
    if isinstance(entry, Mapping):
        node = {"_target_": FROM_FILE} | dict(entry)
        if mistakes := list(node_mistakes(OmegaConf.create(node), f"sets.{set_name(node)}")):
            raise ConfigurationError("\n".join(mistakes))
        return set_name(node), node
    path = conf_dir() / "problems" / f"{entry}.yaml"
    if not path.is_file():
        node = {"_target_": FROM_FILE, "path": str(entry)}
        return set_name(node), node
    known = OmegaConf.load(path)
    if missing := OmegaConf.missing_keys(known):
        settings = " ".join(f"sets.{entry}.{key}=..." for key in sorted(missing))
        raise ConfigurationError(
            f"sets: {entry} does not say everything; +problems@sets.{entry}={entry} {settings}"
        )
    assert isinstance(known, DictConfig)
    return str(entry), known


def set_name(node: Mapping[str, Any]) -> str:
    """What to call a problem set: its own name, that of its file, or what generates it."""
    if node.get("name"):
        return str(node["name"])
    if node.get("path"):
        return Path(str(node["path"])).stem
    return str(node["_target_"]).split(".")[-1].removesuffix("_problems")


def folder_name(label: str) -> str:
    """A label as the name of a folder.

    Raises ConfigurationError for one that names none, or is longer than file systems take.
    """
    name = re.sub(r"[^\w.-]", "_", label)
    if not name.strip("."):
        raise ConfigurationError(
            f"{label!r} can be no folder's name: give another by models={{LABEL: PATH, ...}} or "
            "+problems@sets.NAME=..."
        )
    if (length := len(name.encode())) > LONGEST_NAME:
        raise ConfigurationError(
            f"a name of {length} bytes is too long for a folder ({LONGEST_NAME} at most): "
            f"{name[:40]}..., give a shorter one by models={{LABEL: PATH, ...}} or "
            "+problems@sets.NAME=..."
        )
    return name


def _check_unique(names: list[str], remedy: str) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ConfigurationError(
            f"several are called {', '.join(repeated)}: give each a name of its own by {remedy}"
        )
