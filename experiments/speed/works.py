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
}


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
        fixed: every completion has `new_tokens` tokens, since the end token is none that the
            policy could sample; else it ends by itself.
        forced_dead: share of the problems whose completions all earn 0.
        judge: how the others are judged, see reward.py.
        steps: measured, after one that is not.
        trl_rows: rows of TRL's micro-batch: the least within 3 % of the fastest (--tune).
        seconds, memory: at most these shares of TRL's are aimed at.
        utilization: at least this share of the matmul rate is aimed at in the update.
    """

    name: str
    kind: str
    policy: str
    prompts: int
    group: int
    new_tokens: int
    questions: str
    prompt_tokens: int | None
    fixed: bool
    forced_dead: float
    judge: str
    steps: int
    trl_rows: int
    seconds: float | None = None
    memory: float | None = None
    utilization: float | None = None

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    @property
    def problems(self) -> int:
        """In the file; where groups are few all of them, so that every step has its dead ones."""
        return self.prompts if self.questions == "words" else 2048


def _forced(wanted: float, own: float) -> float:
    """Share of dead problems that makes `wanted` of those whose own share is `own`."""
    return (wanted - own) / (1 - own)


WORKS = (
    Work(
        *("equal work, embedded", "a", "embedded", 32, 8, 24, "arithmetic", None, True, 0.0, "hash", 12, 64),
        seconds=0.7,
    ),
    Work(
        *("equal work, 134M", "a", "134M", 2, 8, 96, "words", 32, True, 0.0, "hash", 2, 4),
        **{"seconds": 0.7, "utilization": 0.6},
    ),
    Work(
        *("real work, embedded", "b", "embedded", 32, 8, 48, "arithmetic", None, False),
        *(_forced(DEAD_AT_MID_TRAINING, DEAD_AT_THE_START), "box", 12, 64),
        seconds=0.45,
    ),
    Work(
        *("real work, 134M", "b", "134M", 4, 8, 24, "words", 200, False, 0.25, "hash", 2, 4),
        seconds=0.45,
    ),
    Work(
        *("large vocabulary, 43M", "c", "43M", 2, 4, 1024, "words", 32, True, 0.0, "hash", 2, 1),
        **{"seconds": 0.5, "memory": 0.4},
    ),
)
QUICK = (
    replace(WORKS[0], prompts=4, steps=2, trl_rows=32),
    replace(WORKS[3], policy="tiny", group=4, prompt_tokens=40, trl_rows=16),
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
