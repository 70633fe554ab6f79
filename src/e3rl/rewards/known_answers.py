"""Completions of known standing: what a verifier must get right before a run may start."""

from dataclasses import dataclass

from e3rl.rewards.answer_reader import AnswerFormat
from e3rl.rewards.verdict import Status, Verdict


@dataclass(frozen=True)
class KnownAnswer:
    """A completion (or a bare answer) whose verdict is known."""

    shows: str
    completion: str
    gold: str
    prompt: str
    status: Status

    def check(self, verdict: Verdict) -> None:
        """Raise RuntimeError where the verdict differs from the known one."""
        if verdict != Verdict(float(self.status == "correct"), self.status):
            raise RuntimeError(
                f"reward self-test failed ({self.shows}): {self.completion!r} with gold "
                f"{self.gold!r} must be {self.status}, got {verdict}; rewards cannot be trusted, "
                "check the installed version of the package that judges"
            )


KNOWN_COMPLETIONS: dict[AnswerFormat, tuple[KnownAnswer, ...]] = {
    "integer_box": (
        KnownAnswer("right", r"so \boxed{46}", "46", "12+34=?", "correct"),
        KnownAnswer("wrong", r"so \boxed{47}", "46", "12+34=?", "wrong"),
        KnownAnswer("unboxed", "the answer is 46", "46", "12+34=?", "unparsed"),
        KnownAnswer("copied", r"\boxed{12+34}", "46", "12+34=?", "unparsed"),
    ),
    "math_box": (
        KnownAnswer(
            "right", r"so \boxed{\frac{\sqrt{2}}{2}}", r"\frac{1}{\sqrt{2}}", "", "correct"
        ),
        KnownAnswer("wrong", r"so \boxed{\sqrt{3}}", r"\sqrt{2}", "", "wrong"),
        KnownAnswer("unboxed", "the answer is 46", "46", "", "unparsed"),
        KnownAnswer("not evaluated", r"\boxed{12+34}", "46", "Add 12 and 34.", "wrong"),
        KnownAnswer("copied", r"\boxed{\sqrt{8}-1}", r"2\sqrt{2}-1", r"Find $\sqrt8-1$.", "wrong"),
    ),
    "last_number": (
        KnownAnswer("right", "12 and 34 make 46.", "46", "12+34=?", "correct"),
        KnownAnswer("right, with a sign", "so it is -1,046", "-1046", "", "correct"),
        KnownAnswer("wrong", "46 is wrong, it is 47", "46", "12+34=?", "wrong"),
        KnownAnswer("no number", "I do not know", "46", "12+34=?", "unparsed"),
    ),
    "hashes": (
        KnownAnswer("right", "12 + 34 = 46\n#### 46", "46", "", "correct"),
        KnownAnswer("wrong", "it is 46\n#### 47", "46", "", "wrong"),
        KnownAnswer("no hashes", "the answer is 46", "46", "", "unparsed"),
    ),
    "answer_tags": (
        KnownAnswer("right", "so <answer> 46 </answer>", "46", "", "correct"),
        KnownAnswer("wrong", "46 <answer>47</answer>", "46", "", "wrong"),
        KnownAnswer("never closed", "<answer>46", "46", "", "unparsed"),
    ),
    "choice": (
        KnownAnswer("right", "A is too small. The answer is (B).", "B", "", "correct"),
        KnownAnswer("right, boxed", r"\boxed{B}", "(B)", "", "correct"),
        KnownAnswer("wrong", "(B) is too small, so (C)", "B", "", "wrong"),
        KnownAnswer("no letter", "It is the second one.", "B", "", "unparsed"),
    ),
    "completion": (
        KnownAnswer("right", "46", "46", "", "correct"),
        KnownAnswer("wrong", "47", "46", "", "wrong"),
        KnownAnswer("empty", "  ", "46", "", "unparsed"),
    ),
}

# Bare answers, for the comparison in a worker.
KNOWN_COMPARISONS = (
    KnownAnswer("comparison of integers", "46", "46", "", "correct"),
    KnownAnswer("comparison of integers", "47", "46", "", "wrong"),
    KnownAnswer("comparison of numbers", "0.5", r"\frac{1}{2}", "", "correct"),
    KnownAnswer("gold first, answer second", r"(2, \infty)", "x > 2", "", "correct"),
)
