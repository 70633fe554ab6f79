"""Count the problems, repeats and overlaps of problem sets.

    e3rl dataset_card +problems@sets.NAME=SET [sets.NAME.path=FILE] [KEY=VALUE ...]

Writes `dataset_card.md` and prints it.
"""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from e3rl.analysis.tables.cells import as_markdown, drop_empty_columns
from e3rl.config.command import configured
from e3rl.config.composition import ConfigurationError
from e3rl.data.bad_rows import BadRowsError
from e3rl.data.card import Lengths, overlap_rows, set_row
from e3rl.data.problems import ProblemSet
from e3rl.data.prompt_lengths import UnknownTokensError
from e3rl.process.output import NoPlaceError, check_folder
from e3rl.rewards.answer_reader import AnswerReader
from e3rl.rewards.golds import UnmatchableGoldsError
from e3rl.rewards.maths import MathScorer

WORDS = ("set", "dropped", "sources", "answers", "shares with", "e.g.")  # columns of texts


@configured("dataset_card", BadRowsError, UnknownTokensError, FileNotFoundError, NoPlaceError)
def main(cfg: DictConfig) -> None:
    """Write and print the card."""
    print(write_dataset_card(cfg))


def write_dataset_card(cfg: DictConfig) -> str:
    """The card as Markdown, written to `<out>/dataset_card.md`.

    Raises ConfigurationError where no set is given or one cannot be loaded, NoPlaceError where no
    folder can be made at `out`, UnknownTokensError for a question that the policy cannot spell.
    """
    from e3rl.config.build import build
    from e3rl.config.check import check_command

    check_command(cfg, "dataset_card")
    if not cfg.sets:
        raise ConfigurationError(
            "no problem sets are given: add +problems@sets.train=e3_train sets.train.path=FILE"
        )
    for name, node in cfg.sets.items():
        if not OmegaConf.is_dict(node):
            raise ConfigurationError(f"sets.{name}={node}: write +problems@sets.{name}={node}")
    check_folder("out=", Path(cfg.out))
    sets = {
        name: ProblemSet.of(build(cfg, f"sets.{name}"), str(name)) for name in map(str, cfg.sets)
    }
    policy = build(cfg, "policy") if cfg.get("policy") else None
    tokens: Lengths | None = (lambda p: len(policy.encode(p)[1])) if policy else None
    rows = [set_row(name, p, tokens, cfg.max_prompt_tokens) for name, p in sets.items()]
    parts = [render_rows(rows)]
    shared = overlap_rows(sets)
    note = "" if shared else "No question is in two of the sets (exact after normalisation)."
    parts.append(render_rows(shared) if shared else note)
    parts.append(describe_unmatchable_answers(sets))
    text = "\n\n".join(part.strip() for part in parts)
    out = Path(cfg.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "dataset_card.md").write_text(text + "\n", encoding="utf-8")
    return text


def render_rows(rows: list[dict[str, str]]) -> str:
    """The columns that hold anything; texts to the left, counts to the right."""
    return as_markdown(drop_empty_columns(rows, ""), words=WORDS)


def describe_unmatchable_answers(sets: dict[str, ProblemSet]) -> str:
    """Whether every gold answer can be matched at all."""
    try:
        questions = (problem.question() for found in sets.values() for problem in found)
        MathScorer(AnswerReader("math_box")).check(questions)
    except UnmatchableGoldsError as error:
        return str(error)
    return "Every gold answer can be read by the verifier."


if __name__ == "__main__":
    main()
