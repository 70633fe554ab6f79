"""The work that is measured, the same for both sides, and what its figures are held against."""

from dataclasses import dataclass, replace

# Of the prompts of a GRPO run of the default size, 192 steps of 32 x 8: mean over the middle third
# of the five recorded runs (`advantage/silent` in experiments/runs/seed-*_experiment-grpo), and
# over their first eight steps, where the policy is the warm start.
DEAD_AT_MID_TRAINING = 0.247
DEAD_AT_THE_START = 0.148


@dataclass(frozen=True)
class Shape:
    """A policy with random weights: a Llama without biases, output layer tied to the embedding."""

    layers: int
    hidden: int
    inner: int
    heads: int
    key_value_heads: int
    vocabulary: int


SHAPES = {
    "134M": Shape(30, 576, 1536, 9, 3, 49_152),  # SmolLM2-135M's
    "43M": Shape(4, 256, 1024, 4, 4, 151_936),  # the vocabulary of Qwen2.5
    "tiny": Shape(2, 64, 128, 2, 2, 512),  # for --quick
    "1.5B": Shape(28, 1536, 8960, 12, 2, 151_936),  # Qwen2.5-1.5B's, for experiments/gpu_smoke
    "wide": Shape(1, 64, 128, 2, 2, 151_936),  # hardly more than an output layer, likewise
}


@dataclass(frozen=True)
class Aim:
    """At most these shares of TRL's seconds and memory; of the matmul rate at least this one."""

    seconds: float
    memory: float | None = None
    utilization: float | None = None


@dataclass(frozen=True)
class Work:
    """One line of the table.

    Attributes:
        name: of the line and of the entry in results.json.
        kind: a, b or c as in the README.
        policy: "embedded", or a name of SHAPES.
        prompts, group, new_tokens: per step; completions have at most `new_tokens`.
        questions: "arithmetic" problems of the embedded default, "sums" of four numbers, of which
            there are any number, or "words", random ones, `prompt_tokens` of them.
        fixed: every completion has `new_tokens` tokens, since the policy cannot end it; else it
            ends by itself.
        forced_dead: share of the problems whose completions all earn 0.
        judge: how the others are judged, see reward.py.
        steps: measured, after one that is not.
        trl_rows: rows of TRL's micro-batch; --tune tries others.
        aim: what its figures are held against.
    """

    name: str
    kind: str
    policy: str
    prompts: int
    group: int
    new_tokens: int
    questions: str
    fixed: bool
    judge: str
    steps: int
    trl_rows: int
    aim: Aim
    prompt_tokens: int | None = None
    forced_dead: float = 0.0

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    @property
    def problems(self) -> int:
        """In the file; where groups are few all of them, so that every step has its dead ones."""
        return self.prompts if self.questions == "words" else 2048


WORKS = (
    Work(
        name="equal work, embedded",
        kind="a",
        policy="embedded",
        prompts=32,
        group=8,
        new_tokens=24,
        questions="arithmetic",
        fixed=True,
        judge="hash",
        steps=12,
        trl_rows=64,
        aim=Aim(seconds=0.7),
    ),
    Work(
        name="equal work, 134M",
        kind="a",
        policy="134M",
        prompts=2,
        group=8,
        new_tokens=96,
        questions="words",
        prompt_tokens=32,
        fixed=True,
        judge="hash",
        steps=2,
        trl_rows=4,
        aim=Aim(seconds=0.7, utilization=0.6),
    ),
    Work(
        name="real work, embedded",
        kind="b",
        policy="embedded",
        prompts=32,
        group=8,
        new_tokens=48,
        questions="arithmetic",
        fixed=False,
        judge="box",
        forced_dead=(DEAD_AT_MID_TRAINING - DEAD_AT_THE_START) / (1 - DEAD_AT_THE_START),
        steps=12,
        trl_rows=64,
        aim=Aim(seconds=0.45),
    ),
    Work(
        name="real work, 134M",
        kind="b",
        policy="134M",
        prompts=4,
        group=8,
        new_tokens=24,
        questions="words",
        prompt_tokens=200,
        fixed=False,
        judge="hash",
        forced_dead=0.25,
        steps=2,
        trl_rows=4,
        aim=Aim(seconds=0.45),
    ),
    Work(
        name="large vocabulary, 43M",
        kind="c",
        policy="43M",
        prompts=2,
        group=4,
        new_tokens=1024,
        questions="words",
        prompt_tokens=32,
        fixed=True,
        judge="hash",
        steps=1,
        trl_rows=1,
        aim=Aim(seconds=0.5, memory=0.4),
    ),
)
QUICK = (
    replace(WORKS[0], prompts=4, steps=2, trl_rows=32),
    replace(
        WORKS[3], name="real work, tiny", policy="tiny", group=4, prompt_tokens=40, trl_rows=16
    ),
)


@dataclass(frozen=True)
class Growth:
    """One run of e3rl alone; the embedded policy, completions of 24 tokens.

    Attributes:
        kind: what grows.
        size: its value.
        work: what a step does.
        problems: in the file.
        experiment: preset; the one with a budget and a temperature rule where problems grow.
    """

    kind: str
    size: int
    work: Work
    problems: int = 4096
    experiment: str = "grpo"


STEP = replace(WORKS[0], name="growth", questions="sums", steps=6)


def growths(quick: bool) -> list[Growth]:
    """Tokens per step from 1 to 32 times the default's, groups of 4 to 64 in steps of 256 rollouts,
    and a thousand to a million problems."""
    factors, groups, counts = (1, 2, 4, 8, 16, 32), (4, 8, 16, 32, 64), (10**3, 10**4, 10**5, 10**6)
    if quick:
        factors, groups, counts = (1, 2), (4,), (10**3,)
    tokens = [
        Growth("tokens per step", f, replace(STEP, prompts=32 * f, steps=6 if f < 8 else 2))
        for f in factors
    ]
    sizes = [Growth("group size", g, replace(STEP, prompts=256 // g, group=g)) for g in groups]
    problems = [Growth("problems", n, STEP, n, "e3") for n in counts]
    return [*tokens, *sizes, *problems]
