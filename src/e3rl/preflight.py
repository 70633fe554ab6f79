"""Say whether a run is worth starting, from a few rollouts.

    e3rl preflight [the run's own arguments]

Samples a few rollouts of some training problems without an update, prints what they show and a
verdict, and writes `preflight.json`. Exits with 0 for go, 1 for no-go, 2 for a mistake.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from e3rl.config.command import configured
from e3rl.config.composition import accept_new_keys


class NoGoExit(SystemExit):
    """The verdict, told apart from exits of Hydra's own, which are about mistakes."""


@configured("preflight", FileNotFoundError, ChildProcessError)
def main(cfg: DictConfig) -> None:
    """Run the preflight; ends with code 1 for no-go and 2 for a mistake."""
    from e3rl.config.build import silence_libraries

    silence_libraries()
    if not preflight(cfg):
        raise NoGoExit(1)


def preflight(cfg: DictConfig) -> bool:
    """Sample, check, print and write; returns whether the run may start.

    Raises ConfigurationError where the run would.
    """
    from torch import OutOfMemoryError

    from e3rl.engines.canary import EngineMismatchError
    from e3rl.readiness.checks import Finding, is_go
    from e3rl.readiness.preflight import run_preflight
    from e3rl.readiness.rendering import preflight_values, render_preflight, render_verdict

    try:
        result = run_preflight(cfg)
    except (EngineMismatchError, OutOfMemoryError, MemoryError) as error:
        check = "mismatch" if isinstance(error, EngineMismatchError) else "memory"
        findings = [Finding(check, "fail", str(error), "the message has it")]
        values: dict[str, Any] = {"go": False, "findings": [asdict(each) for each in findings]}
        shown = f"{error}\n\n{render_verdict(findings)}"
    else:
        findings = result.findings
        values = preflight_values(
            result.sample, result.groups, findings, result.scores, result.forecast
        )
        shown = render_preflight(result.sample, findings, result.scores)
    out = Path(cfg.paths.run_dir)
    out.mkdir(parents=True, exist_ok=True)
    (out / "preflight.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    print(f"\n{shown}\n\nall numbers: {out / 'preflight.json'}")
    return is_go(findings)


def command() -> None:
    """The command line; Hydra ends with 1 where it does not get as far as a verdict."""
    sys.argv[1:] = accept_new_keys(sys.argv[1:])
    try:
        main()
    except NoGoExit:
        raise
    except SystemExit as error:
        raise SystemExit(2 if error.code == 1 else error.code) from error


if __name__ == "__main__":
    command()
