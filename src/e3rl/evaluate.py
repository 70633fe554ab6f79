"""pass@k of a checkpoint or a model: `python -m e3rl.evaluate ckpt_path=... [n=64] ...`.

Writes `validation.jsonl` (per-problem counts) and `summary.json`, and prints the table.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from omegaconf import DictConfig, OmegaConf

from e3rl.checkpoint_files import PATTERN, DamagedCheckpointError, newest_sound
from e3rl.configuration import ConfigurationError, conf_dir, register_resolvers, run_of

if TYPE_CHECKING:
    from e3rl.callbacks.validation_plan import Evaluation
    from e3rl.policy import Policy

register_resolvers()


@hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="evaluate")
def main(cfg: DictConfig) -> float:
    """Evaluate; returns pass@1 of the first temperature."""
    from e3rl.running import quiet

    quiet()
    try:
        return evaluate(cfg)
    except (ConfigurationError, FileNotFoundError, DamagedCheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


def evaluate(cfg: DictConfig) -> float:
    """Sample, count, write and print."""
    from e3rl.analysis.summary import arm_rows, render
    from e3rl.evaluating import evaluate_policy, measured
    from e3rl.running import build

    checkpoint = newest_sound(checkpoint_path(cfg.ckpt_path)) if cfg.ckpt_path else None
    policy = build_policy(cfg, checkpoint)
    counts = evaluate_policy(
        policy,
        build(cfg, "problems"),
        evaluations_of(cfg),
        build(cfg, "engine"),
        build(cfg, "reward"),
        cfg.max_new_tokens,
        ks=list(cfg.ks),
        prompts_per_batch=cfg.prompts_per_batch,
    )
    name = checkpoint.stem if checkpoint else Path(policy.path).name
    rows = arm_rows([measured(name, c) for c in counts], k=min(max(cfg.ks), cfg.n))
    out = Path(cfg.out)
    out.mkdir(parents=True, exist_ok=True)
    found = PATTERN.search(checkpoint.name) if checkpoint else None
    step = int(found[1]) if found else 0
    lines = [json.dumps({"rollout_step": step, **vars(c)}) for c in counts]
    (out / "validation.jsonl").write_text("\n".join(lines) + "\n")
    (out / "summary.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(f"\n{render(rows)}\n\nper-problem counts: {out / 'validation.jsonl'}")
    return float(rows[0]["pass@1"])


def evaluations_of(cfg: DictConfig) -> "list[Evaluation]":
    """One evaluation per temperature and entropy, named after it and what truncates it.

    Raises ConfigurationError where a value makes no sense.
    """
    from e3rl.callbacks.validation_plan import Evaluation

    cut = {"top_p": cfg.top_p, "top_k": cfg.top_k}
    suffix = f"_p{cfg.top_p:g}" * (cfg.top_p != 1) + f"_k{cfg.top_k}" * (cfg.top_k != 0)
    try:
        return [
            Evaluation("greedy", 1, temperature=0)
            if t == 0
            else Evaluation(f"t{t:g}{suffix}", cfg.n, temperature=t, **cut)
            for t in cfg.temperatures
        ] + [Evaluation(f"h{h:g}{suffix}", cfg.n, entropy=h, **cut) for h in cfg.entropies]
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def checkpoint_path(ckpt_path: str) -> Path:
    """A checkpoint file, or the checkpoints folder of a run folder."""
    path = Path(ckpt_path)
    return path if path.suffix == ".ckpt" else run_of(path) / "checkpoints"


def build_policy(cfg: DictConfig, checkpoint: Path | None) -> "Policy":
    """The configured policy, or the one of the checkpoint's run with the checkpoint's weights."""
    from e3rl.evaluating import load_weights
    from e3rl.running import build

    source: Any = cfg
    if checkpoint is not None:
        saved = run_of(checkpoint) / "config.yaml"
        if not saved.is_file():
            raise FileNotFoundError(
                f"{saved} is missing: it says which model the checkpoint belongs to; keep "
                "checkpoints in their run folder"
            )
        source = OmegaConf.load(saved)
    policy: Policy = build(source, "policy")
    if checkpoint is not None:
        load_weights(policy, checkpoint)
    return policy


if __name__ == "__main__":
    main()
