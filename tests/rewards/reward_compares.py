"""Comparisons with known behaviour, importable by worker processes."""

import os
import signal
import time
from pathlib import Path

from e3rl.rewards.verdict import CORRECT, WRONG, Verdict
from e3rl.rewards.verifier import compare_answers


def scripted(gold: str, answer: str) -> Verdict:
    """Right where the answer ends in the gold; some answers hang, crash or fail instead."""
    if "hang" in answer:
        while True:
            time.sleep(60)
    if "deaf" in answer:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        time.sleep(600)
    if "killed" in answer:
        os.kill(os.getpid(), signal.SIGKILL)
    if "segfault" in answer:
        os.kill(os.getpid(), signal.SIGSEGV)
    if "bug" in answer:
        raise ZeroDivisionError(f"a bug of ours, gold {gold}")
    return CORRECT if answer.endswith(gold) else WRONG


def dies_once(gold: str, answer: str) -> Verdict:
    """Kills its worker the first time; the gold answer is a path that remembers it."""
    mark = Path(gold)
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return CORRECT


def counted(gold: str, answer: str) -> Verdict:
    """Adds a line to the file that the gold answer names."""
    with Path(gold).open("a") as log:
        log.write(answer + "\n")
    return WRONG


def burning_forever(gold: str, answer: str) -> Verdict:
    """Computes for ever but where the answer is "quick"; the gold answer is a path of a log."""
    counted(gold, answer)
    while answer != "quick":
        pass
    return WRONG


def waiting(gold: str, answer: str) -> Verdict:
    """Waits for ever, as what the machine has no time for does; the gold answer is a log."""
    counted(gold, answer)
    time.sleep(600)
    return WRONG


def burning(gold: str, answer: str) -> Verdict:
    """Takes the CPU seconds that stand at the end of the answer, and sleeps for 0.2 besides."""
    seconds = float(answer.split()[-1])
    time.sleep(0.2)
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return WRONG


def always_right(gold: str, answer: str) -> Verdict:
    return CORRECT


def gold_last(gold: str, answer: str) -> Verdict:
    """math-verify with its arguments swapped."""
    return compare_answers(answer, gold)


def memory_hog(gold: str, answer: str) -> Verdict:
    try:
        bytearray(int(answer.split()[-1]) * 2**20)
    except MemoryError:
        return WRONG
    return CORRECT


HELD: list[bytearray] = []  # what `leaking` never gives back


def leaking(gold: str, answer: str) -> Verdict:
    """Keeps as many MiB as the answer ends with, then compares."""
    HELD.append(bytearray(int(answer.split()[-1]) * 2**20))
    return CORRECT
