"""What completions earn in the benchmark: the same two functions on both sides.

A problem's row says by which one it is judged (`judge`), and whether its group is dead: all of its
rollouts earn 0, as those of a prompt that is too hard.
"""

import hashlib
import re

BOXED = re.compile(r"\\boxed\{\s*(-?\d+)\s*\}")


def score(completion: str, answer: str, prompt: str, judge: str, dead: bool) -> float:
    """The reward of one completion, in [0, 1]; above 0.5 it counts as correct.

    `hash` draws it from prompt and completion, so that two different completions of a prompt never
    earn the same; `box` compares the integer in the last box with the answer.
    """
    if dead:
        return 0.0
    if judge == "hash":
        digest = hashlib.sha256(f"{prompt}\n{completion}".encode()).digest()
        return int.from_bytes(digest[:6], "big") / 2**48
    if judge != "box":
        raise ValueError(f"judge={judge!r}: use hash or box")
    found = BOXED.findall(completion)
    return float(bool(found) and int(found[-1]) == int(answer))
