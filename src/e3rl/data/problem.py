"""`Problem`: one question with a verifiable answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from e3rl.rewards.scorer import Question, make_question

Message = dict[str, str]  # {"role": ..., "content": ...}


@dataclass(frozen=True)
class Problem:
    """A prompt and its gold answer.

    `prompt` is plain text or a chat (a tuple of role/content messages); `source` names the family
    of a generated problem or the origin of a real one; `prior` is a difficulty rank in [0, 1)
    known beforehand, 0 = easiest; `row` holds the further columns of the problem's file, in values
    that JSON has, for rewards that look at more than the answer.
    """

    id: str
    prompt: str | tuple[Message, ...]
    answer: str
    source: str
    level: int | None = None
    prior: float | None = None
    row: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """What is asked, without roles."""
        if isinstance(self.prompt, str):
            return self.prompt
        return "\n".join(message["content"] for message in self.prompt)

    def question(self) -> Question:
        """What a scorer may know of it; the prompt as it was before rendering."""
        return make_question(self.id, self.text, self.answer, self.source, self.level, self.row)
