"""Train a policy, validating it on the way, into a run folder.

    e3rl train [experiment=e3] [seed=1] [ckpt_path=last] [KEY=VALUE ...]
    e3rl train -m experiment=grpo,e3 seed=1,2 sweep.name=NAME

Composes a run from conf/, validates once before training, trains, and leaves configuration,
ledgers, checkpoints, figures and a summary.
"""

# The top of this file stays light: worker processes import it again.

import sys

from omegaconf import DictConfig

from e3rl.config.command import configured
from e3rl.config.composition import accept_new_keys


@configured("train")
def main(cfg: DictConfig) -> float | None:
    """Run one job, unless its sweep finished it before; returns the final pass@1 at temperature 1,
    for sweepers."""
    from e3rl.config.check import check

    check(cfg)
    if cfg.plan.only:
        from e3rl.planning.forecast import show_plan

        show_plan(cfg)
        return None
    from e3rl.runs.run import execute
    from e3rl.runs.sweep_jobs import finished_job

    if (summary := finished_job(cfg)) is not None:
        print(f"finished before, skipped: {cfg.paths.run_dir}")
        return None if summary["pass@1"] is None else float(summary["pass@1"])
    outcome = execute(cfg)
    if outcome is None:  # another rank than zero
        return None
    from e3rl.runs.outcome import render_outcome

    print(render_outcome(outcome))
    return outcome.pass_at_1


if __name__ == "__main__":
    sys.argv[1:] = accept_new_keys(sys.argv[1:])
    main()
