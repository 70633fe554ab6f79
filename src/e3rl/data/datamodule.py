"""`PromptDataModule`: training and validation problems, checked, and their loaders."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from lightning.pytorch import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn

from e3rl.data.bad_rows import OnBadRow
from e3rl.data.loader import PromptLoader, ValidationLoader, fingerprint, fingerprint_all
from e3rl.data.problem import Problem
from e3rl.data.problems import ProblemSet
from e3rl.data.prompt_lengths import Encode, check_prompt_lengths
from e3rl.data.questions import group_by_question, question_key

OnOverlap = Literal["raise", "drop"]

EXAMPLES = 3  # overlapping problems that a message names
TRAINED_ON = "also trained on"


class PromptDataModule(LightningDataModule):
    """Holds both problem sets; made in two stages, since lengths need the policy's tokenizer.

    1. The constructor takes the problems and sees to it that no question is in both sets:
       `on_overlap` raises, or drops it from the validation set and counts it there.
    2. `bind(encode)` checks prompt lengths; from then on the sizes are final.
    3. Lightning's `setup` makes the loaders once and keeps them, because the training loader's
       position must survive a `validate` before the `fit`.

    The trainer needs `use_distributed_sampler=False`: the loaders share prompts among ranks
    themselves. Sizes of batches count prompts over all ranks.

    Raises ValueError for an empty set, sets that overlap in ids or prompts, and sizes out of
    range.
    """

    def __init__(
        self,
        train: Sequence[Problem],
        validation: Sequence[Problem],
        prompts_per_step: int,
        validation_prompts_per_batch: int = 1024,
        seed: int = 0,
        max_prompt_tokens: int = 1024,
        on_bad_row: OnBadRow = "raise",
        lookahead: int = 0,
        on_overlap: OnOverlap = "raise",
    ) -> None:
        super().__init__()
        self.train_problems = ProblemSet.of(train, "training problems")
        self.validation_problems = ProblemSet.of(validation, "validation problems")
        self.prompts_per_step = prompts_per_step
        self.validation_prompts_per_batch = validation_prompts_per_batch
        self.seed = seed
        self.max_prompt_tokens = max_prompt_tokens
        self.on_bad_row = on_bad_row
        self.lookahead = lookahead
        self.longest_prompt = 0  # tokens; known once an encoder is bound
        self._encode: Encode | None = None
        self._loaders: tuple[PromptLoader, ValidationLoader] | None = None
        self.validation_problems = drop_overlap(
            self.train_problems, self.validation_problems, on_overlap
        )
        self._check_sizes()

    def bind(self, encode: Encode) -> None:
        """Give the policy's rendering and tokenizing of a problem; checks every prompt's length.

        Raises BadRowsError about the prompts that are too long, or drops them, by `on_bad_row`.
        """
        (self.train_problems, train), (self.validation_problems, validation) = (
            check_prompt_lengths(problems, encode, self.max_prompt_tokens, self.on_bad_row)
            for problems in (self.train_problems, self.validation_problems)
        )
        self.longest_prompt = max(train, validation)
        self._check_sizes()
        self._encode = encode
        self._loaders = None

    @property
    def steps_per_epoch(self) -> int:
        """Rollout steps in a pass over the training problems; final once an encoder is bound."""
        self._require_encoder()
        return len(self.train_problems) // self.prompts_per_step

    def setup(self, stage: str) -> None:
        if self._loaders is None:
            rank = self.trainer.global_rank if self.trainer else 0
            world_size = self.trainer.world_size if self.trainer else 1
            self._loaders = self._make_loaders(self._require_encoder(), rank, world_size)

    def train_dataloader(self) -> PromptLoader:
        return self._require_loaders()[0]

    def val_dataloader(self) -> ValidationLoader:
        return self._require_loaders()[1]

    def state_dict(self) -> dict[str, Any]:
        """The training loader's position, and what is validated on.

        Lightning stores a loader's state by itself, but does not bring it back from a checkpoint
        that was written at the end of an epoch; a data module's state it always does.
        """
        validation = fingerprint_all(self.validation_problems)
        return {"train": self._require_loaders()[0].state_dict(), "validation": validation}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from the stored position, if this is to train: a validation has no use for it.

        Raises ValueError for other keys, and where the problems are not the same.
        """
        if self.trainer is not None and self.trainer.state.fn != TrainerFn.FITTING:
            return
        if state_dict.keys() != {"train", "validation"}:
            raise ValueError(
                f"data state has keys {sorted(state_dict)}, expected ['train', 'validation']"
            )
        known = fingerprint_all(self.validation_problems), fingerprint(self.validation_problems)
        if state_dict["validation"] not in known:  # the second of earlier checkpoints
            raise ValueError(
                "the checkpoint was made with other validation problems, and its curves would not "
                "go on: resume with the data that it was made with, or start a new run"
            )
        self._require_loaders()[0].load_state_dict(state_dict["train"])

    def _make_loaders(
        self, encode: Encode, rank: int, world_size: int
    ) -> tuple[PromptLoader, ValidationLoader]:
        return (
            PromptLoader(
                self.train_problems,
                encode,
                self.prompts_per_step,
                self.seed,
                rank,
                world_size,
                self.lookahead,
            ),
            ValidationLoader(
                self.validation_problems,
                encode,
                self.validation_prompts_per_batch,
                rank,
                world_size,
            ),
        )

    def _require_encoder(self) -> Encode:
        if self._encode is None:
            raise RuntimeError("the data module has no encoder: call bind(policy.encode) first")
        return self._encode

    def _require_loaders(self) -> tuple[PromptLoader, ValidationLoader]:
        if self._loaders is None:
            raise RuntimeError("the data module has no loaders: call setup first")
        return self._loaders

    def _check_sizes(self) -> None:
        for problems in (self.train_problems, self.validation_problems):
            if not problems:
                raise ValueError(f"{problems.origin}: no problem is left; give at least one")
        if not 1 <= self.prompts_per_step <= len(self.train_problems):
            raise ValueError(
                f"prompts_per_step={self.prompts_per_step} must lie between 1 and the "
                f"{len(self.train_problems)} training problems"
            )
        if self.validation_prompts_per_batch < 1:
            raise ValueError(
                f"validation_prompts_per_batch={self.validation_prompts_per_batch}: "
                "take at least 1 prompt"
            )


def drop_overlap(
    train: ProblemSet, validation: ProblemSet, on_overlap: OnOverlap = "raise"
) -> ProblemSet:
    """The validation problems that are not trained on, by `question_key`.

    Training keeps what it has, so that a published training set stays as it was published.

    Raises ValueError, with examples, for a problem id that is in both sets, and for a question
    that is, unless these are to be dropped, which is counted and warned about.
    """
    if on_overlap not in get_args(OnOverlap):
        raise ValueError(f"on_overlap is {on_overlap!r}: choose 'raise' or 'drop'")
    trained_ids = {problem.id for problem in train}
    shared_ids = [problem.id for problem in validation if problem.id in trained_ids]
    if shared_ids:
        raise ValueError(
            f"{len(shared_ids)} ids are in {train.origin} and in {validation.origin}, e.g. "
            f"{', '.join(shared_ids[:EXAMPLES])}: give the problems other ids, or the files "
            "other names"
        )
    trained = group_by_question(train)
    shared = {
        row: (p.id, trained[question_key(p)][0].id)
        for row, p in zip(validation.rows, validation, strict=True)
        if question_key(p) in trained
    }
    if not shared:
        return validation
    named = ", ".join(f"{own} = {other}" for own, other in list(shared.values())[:EXAMPLES])
    message = (
        f"{len(shared)} problems of {validation.origin} are also trained on from "
        f"{train.origin}, e.g. {named}"
    )
    if on_overlap == "raise":
        raise ValueError(f"{message}: remove them from one of the two, or set on_overlap=drop")
    warnings.warn(f"{message}: not validated on", stacklevel=3)
    return validation.without(dict.fromkeys(shared, TRAINED_ON))
