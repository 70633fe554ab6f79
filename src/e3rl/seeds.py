"""Every random number derives from what it is for, never from how many were drawn before."""

import hashlib

SEED_BITS = 63


def derive_seed(*parts: int | str) -> int:
    """Stable 63-bit seed of a tuple such as (run seed, "train", step, prompt id, sample).

    Equal on every machine and Python version (unlike `hash`), and independent of the order in
    which seeds are asked for, so a resumed or re-batched run draws the same tokens.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - SEED_BITS)
