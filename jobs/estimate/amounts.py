"""Numbers of parameters and amounts of gradients as people write them: `7b`, `14GB`."""

import re
from decimal import Decimal

from jobs.errors import JobError

_NUMBER = r"(?P<number>[0-9]+(?:\.[0-9]+)?)"
_PARAMETERS = re.compile(_NUMBER + r"\s?(?P<unit>[kmbKMB]?)")
_BYTES = re.compile(_NUMBER + r"\s?(?P<unit>[kMGT]i?B|B)")
_THOUSANDS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
_PREFIXES = {"k": 1, "M": 2, "G": 3, "T": 4}
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
"""Bytes of one gradient, by torch's name of its type."""
MOST_PARAMETERS, MOST_BYTES = 10**15, 10**16


class AmountError(JobError):
    """A text that is no amount, or one that cannot be."""

    kind = "amount"


def parse_parameters(text: str) -> int:
    """7,000,000,000 for `7b`. Raises AmountError."""
    match = _PARAMETERS.fullmatch(text.strip())
    number = int(Decimal(match["number"]) * _THOUSANDS[match["unit"].lower()]) if match else 0
    if not 0 < number <= MOST_PARAMETERS:
        raise AmountError(
            f"{text!r} is no number of parameters",
            rule=f"a number with k, m or b (thousand, million, billion), to {MOST_PARAMETERS:,}",
            fix="PARAMETERS=7b, PARAMETERS=350m",
        )
    return number


def parse_bytes(text: str) -> int:
    """14,000,000,000 for `14GB`, powers of 1024 for `14GiB`. Raises AmountError."""
    match = _BYTES.fullmatch(text.strip())
    number = int(Decimal(match["number"]) * _factor(match["unit"])) if match else 0
    if not 0 < number <= MOST_BYTES:
        raise AmountError(
            f"{text!r} is no amount of gradients",
            rule="a number with B, kB, MB, GB, TB (powers of 1000) or kiB, MiB, GiB, TiB (of 1024)",
            fix="BYTES=14GB",
        )
    return number


def _factor(unit: str) -> int:
    if unit == "B":
        return 1
    return int((1024 if "i" in unit else 1000) ** _PREFIXES[unit[0]])


def item_bytes(dtype: str) -> int:
    """Bytes of one gradient of this type. Raises AmountError."""
    if dtype not in ITEM_BYTES:
        raise AmountError(
            f"DTYPE={dtype}",
            rule=f"gradients are of one of torch's types: {', '.join(ITEM_BYTES)}",
            fix="DTYPE=bfloat16",
        )
    return ITEM_BYTES[dtype]
