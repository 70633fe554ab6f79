"""`Problem`: one question with a verifiable answer."""

from dataclasses import dataclass

Message = dict[str, str]  # {"role": ..., "content": ...}


@dataclass(frozen=True)
class Problem:
    """A prompt and its gold answer.

    `prompt` is plain text or a chat (a tuple of role/content messages); `source` names the family
    of a generated problem or the origin of a real one; `prior` is a difficulty rank in [0, 1)
    known beforehand, 0 = easiest.
    """

    id: str
    prompt: str | tuple[Message, ...]
    answer: str
    source: str
    level: int | None = None
    prior: float | None = None
