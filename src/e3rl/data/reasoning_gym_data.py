"""Tasks of reasoning-gym to train on, and other problems of the same tasks to validate on."""

from e3rl.data.bad_rows import OnBadRow
from e3rl.data.datamodule import PromptDataModule
from e3rl.data.reasoning_gym import Knobs, Levels, Split, Tasks, reasoning_gym_sets


class ReasoningGymData(PromptDataModule):
    """Both problem sets of the same tasks, with no question in common.

    Args:
        tasks, knobs, levels: see `reasoning_gym_problems`.
        size: number of problems to train on.
        validation_size: number of problems to validate on.
        problems_seed: of the draws of problems, not of the run.
        prompts_per_step, validation_prompts_per_batch, seed: see `PromptDataModule`.
        max_prompt_tokens, on_bad_row, lookahead: see `PromptDataModule`.

    Raises ValueError for tasks and settings that there are not, and where a task cannot give so
    many different problems.
    """

    def __init__(
        self,
        tasks: Tasks,
        prompts_per_step: int,
        size: int = 1024,
        validation_size: int = 256,
        problems_seed: int = 0,
        knobs: Knobs | None = None,
        levels: Levels | None = None,
        validation_prompts_per_batch: int = 1024,
        seed: int = 0,
        max_prompt_tokens: int = 1024,
        on_bad_row: OnBadRow = "raise",
        lookahead: int = 0,
    ) -> None:
        sizes: dict[Split, int] = {"train": size, "validation": validation_size}
        train, validation = reasoning_gym_sets(tasks, sizes, problems_seed, knobs, levels)
        super().__init__(
            train,
            validation,
            prompts_per_step,
            validation_prompts_per_batch,
            seed,
            max_prompt_tokens,
            on_bad_row,
            lookahead,
        )
