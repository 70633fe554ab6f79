"""What do 10,000 answers cost that are written to hang, crash, fool or take over a verifier?

    .venv/bin/python experiments/answer_verification/hostile.py [--count 10000] [--seed 0]

Scores them as a run does, in a pool of two workers, and writes hostile.json beside this file.
"""

import argparse
import json
import os
import random
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from e3rl.rewards.maths import build_math_rewards
from e3rl.rewards.scorer import Question
from e3rl.rewards.verdict import Verdict

# None of them is a bare number: text would decide nearly everything else.
GOLDS = (
    r"\sqrt{2}+1",
    r"\frac{7}{3}\pi",
    "(1, 2)",
    "x^2+3x-1",
    r"2^{2014}",
    r"[0, 1) \cup (2, 3]",
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
    r"y = 2x + 5",
    r"\text{(C)}",
    "46",
)
MARK = "e3rl_was_here"  # a file of this name shows that something was executed


class Hostile(NamedTuple):
    """A completion that earns nothing."""

    family: str
    gold: str
    completion: str


def tower(draw: random.Random) -> str:
    text = str(draw.randint(2, 99))
    for _ in range(draw.randint(2, 7)):
        text = f"{draw.randint(2, 99)}^{{{text}}}"
    return text + draw.choice(["", "+1", f"-{draw.randint(1, 10**6)}", r"\cdot\sqrt{2}", "x"])


def factorials(draw: random.Random) -> str:
    text = str(draw.randint(5, 10**6))
    for _ in range(draw.randint(1, 6)):
        text = f"({text})!" if draw.random() < 0.8 else f"{{{text}}}!!"
    return text + draw.choice(["", f"+{draw.randint(1, 99)}", r"/7", r"\pi"])


def terms(draw: random.Random) -> str:
    sign = draw.choice(["sum", "prod"])
    last = draw.choice([f"10^{{{draw.randint(5, 15)}}}", str(10 ** draw.randint(5, 15)), "9^{99}"])
    body = draw.choice(
        [r"\frac{1}{k}", "k^k", "k!", r"\sin(k)", r"\sqrt{k}", r"\frac{(-1)^k}{k^3+1}", "2^{k}"]
    )
    return rf"\{sign}_{{k={draw.randint(0, 9)}}}^{{{last}}} {body}"


def binomials(draw: random.Random) -> str:
    above, below = 10 ** draw.randint(4, 12), 10 ** draw.randint(3, 9)
    return rf"\binom{{{above + draw.randint(0, 9)}}}{{{below}}}" + draw.choice(["", "+1", r"\pi"])


def polynomials(draw: random.Random) -> str:
    names = draw.sample("xyzabc", draw.randint(1, 4))
    return f"({'+'.join(names)}+{draw.randint(1, 9)})^{{{10 ** draw.randint(2, 7)}}}"


def analysis(draw: random.Random) -> str:
    inner = draw.choice(
        ["x^x", r"\sin(x^x)", r"e^{-x^2}\cos(e^x)", r"\frac{\ln x}{1+x^7}", r"\tan(\tan x)"]
    )
    outer = draw.choice(
        [
            r"\int_0^{\infty} %s dx",
            r"\int_0^1\int_0^1 %s dx dy",
            r"\lim_{x\to\infty} %s",
            r"\frac{d}{dx} %s",
            r"\sum_{x=1}^{\infty} %s",
        ]
    )
    return outer.replace("%s", inner) + draw.choice(["", f"+{draw.randint(1, 99)}", "^2"])


def nested(draw: random.Random) -> str:
    depth = draw.randint(5, 45)
    kind = draw.choice(
        [r"\frac{1}{1+@}", r"\sqrt{1+@}", r"\left(@\right)", r"\sin(@)", "{@}", "-@"]
    )
    text = draw.choice(["x", "2", r"\pi"])
    for _ in range(depth):
        text = kind.replace("@", text)
    return text


def braces(draw: random.Random) -> str:
    signs = draw.choice(["{", "}", "(", r"\left(", "[", r"\{", r"\boxed{", r"\frac{"])
    return signs * draw.randint(20, 3000) + "47"


def long(draw: random.Random) -> str:
    piece = draw.choice(["9", "x+", r"\frac{1}{2}", "{}", " ", "<answer>", "((", "\\boxed{1} "])
    return piece * (draw.randint(10**5, 10**6) // len(piece))


def digits(draw: random.Random) -> str:
    zero = ord(draw.choice("٠०０𝟎𝟘⁰"))
    return "".join(chr(zero + draw.randint(0, 9)) for _ in range(draw.randint(1, 8)))


def huge(draw: random.Random) -> str:
    number = "".join(draw.choices("0123456789", k=draw.choice([50, 290, 5000])))
    return draw.choice(["", "-", "+", r"\sqrt{", "0."]) + number


def code(draw: random.Random) -> str:
    call = draw.choice(["__import__('os').system('%s')", 'exec("%s")', "eval('%s')", "open('%s')"])
    payload = draw.choice([f"touch {MARK}", f"import os; os.system('touch {MARK}')", "46", "1/0"])
    wrap = draw.choice(["@", r"\text{@}", r"\lambda x: @", "{{@}}", "$(@)", "`@`", "x.__class__.@"])
    return wrap.replace("@", call.replace("%s", payload))


def soup(draw: random.Random) -> str:
    pieces = (
        *(r"\frac", r"\sqrt", "^", "_", "{", "}", "(", ")", "x", "2", "=", "+", "-", ",", r"\pi"),
        *(r"\sin", r"\log", r"\left", r"\right", r"\begin{pmatrix}", r"\end{pmatrix}", "&", r"\\"),
        *(r"\le", r"\in", r"\cup", r"\infty", "!", "|", r"\%", r"\text{", "e", "i", ".", "%", "$"),
    )
    return "".join(draw.choices(pieces, k=draw.randint(3, 60)))


def letters(draw: random.Random) -> str:
    return "".join(chr(draw.choice([*range(1, 256), 0x200B, 0x202E, 0x1F600])) for _ in range(40))


def sets(draw: random.Random) -> str:
    many = ",".join(str(draw.randint(0, 99)) for _ in range(draw.randint(20, 90)))
    return draw.choice([rf"\{{{many}\}}", f"({many})", rf"\begin{{pmatrix}}{many}\end{{pmatrix}}"])


def equations(draw: random.Random) -> str:
    sides = (f"{draw.choice('xyz')}^{draw.randint(2, 9)}+{draw.randint(1, 99)}" for _ in range(9))
    return draw.choice(["=", "<", r"\le", ","]).join(list(sides)[: draw.randint(2, 9)])


def towers_of_functions(draw: random.Random) -> str:
    names = [r"\sin", r"\cos", r"\tan", r"\ln", r"\exp", r"\arctan", r"\cosh"]
    text = draw.choice(["x", "2", r"\sqrt{3}", r"10^{10}"])
    for _ in range(draw.randint(2, 12)):
        text = f"{draw.choice(names)}({text})"
    return text


def misstated(draw: random.Random) -> tuple[str, str]:
    """A gold answer, and what an algebra system takes for it: its words, its base or its size."""
    value = draw.choice(["46", r"\sqrt{2}", r"\frac{7}{3}", "-5", "0.25"])
    words = draw.choice(
        [
            *("million", "thousand", "dozen", "squared", "factorial", "or more", "or six"),
            *("is wrong", "at least", "plus one", "times ten", "halves", "to the power of two"),
        ]
    )
    small = draw.randint(1, 4)
    number = "".join(draw.choices("01", k=4)) + "1"
    base, other_base = draw.sample([2, 3, 4, 5, 6, 7, 8, 16], 2)
    hour = draw.randint(1, 12)
    return draw.choice(
        [
            (value, rf"{value}\text{{ {words}}}"),
            (value, rf"{value}\text{{}}^2"),
            (f"{number}_{{{base}}}", f"{number}_{{{other_base}}}"),
            (f"{number}_{{{base}}}", rf"{number}\text{{ (base {other_base})}}"),
            (rf"{hour}\text{{ am}}", rf"{hour}\text{{ pm}}"),
            (rf"{hour}:30 \text{{ a.m.}}", rf"{hour}:30 \text{{ p.m.}}"),
            (f"0.000000{small}", draw.choice(["0.0", f"0.000000{small + 1}", r"10^{-8}"])),
            ("10^{-7}", f"0.000000{small + 1}"),
        ]
    )


FAMILIES: dict[str, Callable[[random.Random], str | tuple[str, str]]] = {
    "towers of powers": tower,
    "factorials": factorials,
    "sums and products": terms,
    "binomials": binomials,
    "powers of sums": polynomials,
    "integrals and limits": analysis,
    "nested": nested,
    "unbalanced brackets": braces,
    "long": long,
    "digits of other scripts": digits,
    "huge integers": huge,
    "code": code,
    "LaTeX in any order": soup,
    "any characters": letters,
    "sets and matrices": sets,
    "equations": equations,
    "functions of functions": towers_of_functions,
    "misstated": misstated,
}


def hostile_answers(count: int, seed: int = 0) -> list[Hostile]:
    """So many of them, the families in turn; equal seeds give equal answers."""
    draw = random.Random(seed)
    names = list(FAMILIES)
    made = []
    for number in range(count):
        family = names[number % len(names)]
        drawn = FAMILIES[family](draw)
        gold, answer = (draw.choice(GOLDS), drawn) if isinstance(drawn, str) else drawn
        made.append(Hostile(family, gold, rf"So it is \boxed{{{answer}}}"))
    return made


class Scored(NamedTuple):
    """Verdicts, and the seconds that they took once workers were warm.

    `clock_s` depends on what else the machine does; `cores_s` is what it comes to with a core for
    each worker: processor time of submission, and of the comparisons shared out among the workers,
    a deadline counted for each that was ended.
    """

    verdicts: list[Verdict]
    clock_s: float
    cores_s: float


def score(answers: Sequence[Hostile], workers: int = 2) -> Scored:
    with build_math_rewards("math_box", workers=workers) as pool:
        pool.self_test()
        began, computed = time.perf_counter(), time.process_time()
        for number, answer in enumerate(answers):
            pool.submit(answer.completion, Question(str(number), "Find it.", answer.gold))
        verdicts = pool.collect()
        own = time.process_time() - computed
        return Scored(verdicts, time.perf_counter() - began, own + pool.scoring_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    answers = hostile_answers(args.count, args.seed)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        verdicts, seconds, on_cores = score(answers)
        executed = os.listdir(folder)
    statuses: dict[str, Counter[str]] = {}
    for answer, verdict in zip(answers, verdicts, strict=True):
        statuses.setdefault(answer.family, Counter())[verdict.status] += 1
        if verdict.status in ("correct", "timeout", "error"):
            print(f"{verdict.status}: gold {answer.gold!r}, {answer.completion[:150]!r}")
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF,)]
    results = {
        "answers": len(answers),
        "seed": args.seed,
        "clock_s": round(seconds, 1),
        "cores_s": round(on_cores, 1),
        "load": os.getloadavg()[0],
        "executed": executed,
        "peak_mib": round(peaks[0] / 1024),
        "statuses": dict(sum(statuses.values(), Counter())),
        "by_family": {family: dict(found) for family, found in statuses.items()},
    }
    (Path(__file__).resolve().parent / "hostile.json").write_text(
        json.dumps(results, indent=1) + "\n"
    )
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
