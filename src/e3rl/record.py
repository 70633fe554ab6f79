"""Record finished runs for studies.

    e3rl record RUNS OUT [--control ARM] [--n N] [--temperatures T ...] [--match NAME ...]
                [--archive] [--keep-control] [--keep-policies] [--no-prompts] [--last]
                [--metrics PATTERN ...]

Writes to OUT/runs light copies of every finished run below RUNS (numbers to six digits, clocks to
four, ledgers packed as `.jsonl.xz`, without clocks of parts of a step and mismatches of engines,
each in a folder of its own name; put back into the folder of their sweep they count as finished),
and adds what a study needs and a run does not do for itself, with N rollouts per problem:

- every arm with a schedule at its own last temperature (`live`);
- the control of its seed at temperatures whose entropies enclose the one that each such arm then
  has (`t1.22`, `t1.28`), since a hotter sampler alone explains much of what a schedule seems to
  give. The first arm takes two or three of them, arms at nearby entropies one or none;
- the untrained policy at temperature 1, the same for all that start from it and are validated
  alike.

`--temperatures` samples every arm, and the untrained policy, at these too (`t0.7`), for a frontier.
`--match t1` samples the control at the entropies that the arms have in this evaluation, in place
of those at their own temperatures; `--match` without a name at none.

`--n 0` adds no evaluation. What is recorded already stays, so the command may be called again when
more runs are done; one whose folder has the name of another recorded run is refused. Models and
files of problems that samples need are looked for before anything is written.

`--archive` keeps all of OUT/runs in OUT/runs.tar.xz, which is less than half as large and is
unpacked where it is read; where OUT has one, it is written anew. `--keep-control` writes
OUT/control.tar.xz, with the last validation of each run of the control: what later runs may be
compared with when they end (`control=OUT/control`). `--keep-policies` writes every final policy to
OUT/policies/RUN, a model folder as `e3rl export` makes it, for later samples by others.
`--no-prompts` leaves out what each prompt got at each step, half of what is kept of a run whose
budget differs between prompts; `--last` all but the last step and the last validation; `--metrics`
the metrics of training that no pattern fits (`'policy/entropy*'`).
"""

import argparse
from pathlib import Path


def main() -> None:
    """The command line; what it needs is loaded after it is understood.

    Worker processes load this module too, and none of the rest.
    """
    parser = _parser()
    options = parser.parse_args()
    from e3rl.checkpoints.files import DamagedCheckpointError
    from e3rl.config.composition import ConfigurationError
    from e3rl.runs.extent import Extent
    from e3rl.runs.recording import Sampling, record_runs

    try:
        record_runs(
            *(options.runs, options.out, options.control),
            Sampling(options.n, tuple(options.temperatures), tuple(options.match)),
            Extent(not options.no_prompts, options.last, tuple(options.metrics)),
            archive=options.archive,
            keep_control=options.keep_control,
            keep_policies=options.keep_policies,
        )
    except (ConfigurationError, DamagedCheckpointError, FileNotFoundError, ValueError) as error:
        parser.error(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="e3rl record", description="Record finished runs for studies."
    )
    parser.add_argument("runs", type=Path, help="folder of runs")
    parser.add_argument("out", type=Path, help="where runs/ goes")
    parser.add_argument("--control", default="grpo", help="arm that the others are compared with")
    parser.add_argument(
        "--n", type=int, default=64, help="rollouts per problem of what is added; 0: add nothing"
    )
    parser.add_argument(
        *("--temperatures", "-t"),
        type=float,
        nargs="+",
        default=[],
        help="of all arms",
    )
    parser.add_argument(
        "--match", nargs="*", default=["live"], help="whose entropies the control is sampled at"
    )
    parser.add_argument("--archive", action="store_true", help="keep OUT/runs as one file, packed")
    parser.add_argument("--keep-control", action="store_true", help="write OUT/control.tar.xz")
    parser.add_argument("--keep-policies", action="store_true", help="write OUT/policies")
    parser.add_argument(
        "--no-prompts", action="store_true", help="leave out what each prompt got at each step"
    )
    parser.add_argument("--last", action="store_true", help="keep the last step alone")
    parser.add_argument(
        "--metrics", nargs="+", default=[], metavar="PATTERN", help="of training; without it all"
    )
    return parser


if __name__ == "__main__":
    main()
