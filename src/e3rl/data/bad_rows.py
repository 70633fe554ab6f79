"""What is wrong with rows of a problem file: collected, then raised or dropped as a whole."""

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

OnBadRow = Literal["raise", "skip"]
LISTED = 20  # rows that an error message shows
ADVICE = "Correct these rows, or set on_bad_row=skip to drop and count them."


@dataclass(frozen=True)
class Fault:
    """One thing wrong with one row."""

    reason: str  # a short fixed phrase, the key under which dropped rows are counted
    detail: str  # what was found
    remedy: str  # what to do about it


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used; `row` counts from 0 (in jsonl: line number - 1)."""

    row: int
    faults: tuple[Fault, ...]


class BadRowsError(ValueError):
    """All bad rows of one problem file, with row number, reason and remedy each."""

    def __init__(
        self, origin: str, bad: Sequence[BadRow], total: int, advice: str = ADVICE
    ) -> None:
        self.origin = origin
        self.bad = tuple(bad)
        lines = [
            f"  row {b.row}: {f.reason}: {f.detail}; {f.remedy}"
            for b in self.bad[:LISTED]
            for f in b.faults
        ]
        if len(bad) > LISTED:
            lines.append(f"  ... and {len(bad) - LISTED} more bad rows ({_counted(bad)})")
        super().__init__(
            "\n".join(
                [
                    f"{origin}: {len(bad)} of {total} rows are bad (rows count from 0)",
                    *lines,
                    advice,
                ]
            )
        )


def raise_or_drop_bad_rows(
    origin: str, bad: Sequence[BadRow], total: int, on_bad_row: OnBadRow
) -> dict[str, int]:
    """Raise one `BadRowsError` about all of `bad`, or return how many rows fall to each reason.

    A row with several faults counts once, under its first, so that the counts sum to the rows
    dropped; dropping any is warned about.
    """
    if on_bad_row not in get_args(OnBadRow):
        raise ValueError(f"on_bad_row is {on_bad_row!r}: choose 'raise' or 'skip'")
    if not bad:
        return {}
    if on_bad_row == "raise":
        raise BadRowsError(origin, bad, total)
    warnings.warn(f"{origin}: dropped {len(bad)} of {total} rows ({_counted(bad)})", stacklevel=3)
    return dict(_reasons(bad))


def _reasons(bad: Sequence[BadRow]) -> Counter[str]:
    return Counter(b.faults[0].reason for b in bad)


def _counted(bad: Sequence[BadRow]) -> str:
    return ", ".join(f"{reason}: {count}" for reason, count in _reasons(bad).most_common())
