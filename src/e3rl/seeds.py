"""Every random number derives from what it is for, never from how many were drawn before."""

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

SEED_BITS = 63


def derive_seed(*parts: int | str) -> int:
    """Stable 63-bit seed of a tuple such as (run seed, "train", step, prompt id, sample).

    Equal on every machine and Python version (unlike `hash`), and independent of the order in
    which seeds are asked for, so a resumed or re-batched run draws the same tokens.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - SEED_BITS)


def derive_seeds(head: tuple[int | str, ...], tails: Iterable[str]) -> NDArray[np.uint64]:
    """(B,) `derive_seed(*head, tail)` of every tail, with the head hashed only once."""
    text = "".join(f"{type(part).__name__}:{part}\x1f" for part in head)
    start = hashlib.blake2b(f"{text}str:".encode(), digest_size=8)

    def digest(tail: str) -> bytes:
        rest = start.copy()
        rest.update(tail.encode())
        return rest.digest()

    digests = np.frombuffer(b"".join(map(digest, tails)), dtype=">u8")
    return digests.astype(np.uint64) >> np.uint64(64 - SEED_BITS)
