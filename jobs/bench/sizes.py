"""Sizes of buffers as people write them, nccl-tests among them: `8`, `64K`, `4MiB`, `32MB`.

Owns both directions, and how a range becomes a list. What fits where is `asked`'s matter.
"""

import re
from decimal import Decimal

from jobs.estimate.amounts import AmountError

_SIZE = re.compile(r"(?P<number>[0-9]{1,18}(?:\.[0-9]{1,18})?)\s?(?P<unit>[A-Za-z]*)")
_RULE = (
    "bytes, with K, M, G as nccl-tests has them (powers of 1024, as KiB, MiB, GiB), or with "
    "kB, MB, GB (of 1000)"
)
_FACTORS = {
    **dict.fromkeys(("", "B"), 1),
    **dict.fromkeys(("K", "k", "KiB", "kiB"), 2**10),
    **dict.fromkeys(("M", "m", "MiB"), 2**20),
    **dict.fromkeys(("G", "g", "GiB"), 2**30),
    **dict.fromkeys(("kB", "KB"), 10**3),
    "MB": 10**6,
    "GB": 10**9,
}
UNITS = (
    *(("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)),
    *(("GB", 10**9), ("MB", 10**6), ("kB", 10**3)),
    ("B", 1),
)
MOST_BYTES = 2**40
MOST_SIZES = 64
SHOWN = 40


def parse_size(text: str, variable: str = "SIZES") -> int:
    """Bytes of `64KiB`; `variable` is what was typed. Raises AmountError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise AmountError(f"{variable}={text[:SHOWN]!r} is no size", _RULE, f"{variable}=4MiB")
    number, unit = match["number"], match["unit"]
    if unit not in _FACTORS:
        raise AmountError(
            f"{variable}={text[:SHOWN]!r}: {unit[:SHOWN]!r} {_why(unit)}", _RULE, _fix(unit, number)
        )
    exact = Decimal(number) * _FACTORS[unit]
    if not 0 < exact <= MOST_BYTES or exact % 1:
        raise AmountError(
            f"{variable}={text[:SHOWN]!r} is {exact:,f} bytes",
            f"whole bytes, more than 0, at most {size_words(MOST_BYTES)}",
            f"{variable}=4MiB",
        )
    return int(exact)


def _why(unit: str) -> str:
    meant = unit.lower() in ("kb", "mb", "gb", "b", "kbit", "mbit", "gbit")
    return "may be bits or bytes" if meant else "is no unit"


def _fix(unit: str, number: str) -> str:
    letter = unit[:1].upper() if unit[:1].lower() in ("k", "m", "g") else "M"
    return f"write {number}{letter}iB (powers of 1024), or {number}{letter}B (of 1000)"


def parse_sizes(text: str) -> tuple[int, ...]:
    """`64KiB 4MiB`, or with commas, each once, as asked. Raises AmountError."""
    words = text.replace(",", " ").split()
    if not words:
        raise AmountError("SIZES is empty", "one size or more", 'SIZES="64KiB 4MiB"')
    return _few(tuple(dict.fromkeys(parse_size(word) for word in words)))


def size_range(least: int, most: int, factor: float) -> tuple[int, ...]:
    """From `least` to `most`, each `factor` times the one before. Raises AmountError."""
    if most < least:
        raise AmountError(
            f"MINBYTES={size_words(least)}, MAXBYTES={size_words(most)}",
            "the largest size is not below the smallest",
            f"MINBYTES={_typed(most)} MAXBYTES={_typed(least)}",
        )
    if not 1.01 <= factor <= MOST_BYTES:
        raise AmountError(
            f"STEPFACTOR={factor:g}", "each size is so many times the one before", "STEPFACTOR=2"
        )
    sizes: dict[int, None] = {}
    size = Decimal(least)
    while size <= most and len(sizes) <= MOST_SIZES:
        sizes[int(size)] = None
        size *= Decimal(str(factor))
    return _few(tuple(sizes))


def _few(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if len(sizes) > MOST_SIZES:
        raise AmountError(f"more than {MOST_SIZES} sizes", f"at most {MOST_SIZES}", "STEPFACTOR=4")
    return sizes


def size_words(num_bytes: int) -> str:
    """`4 MiB`, `32 MB`, `1,537 B`: in the unit of which the fewest make it up exactly."""
    whole = [(num_bytes // size, unit) for unit, size in UNITS if num_bytes % size == 0]
    number, unit = min(whole, key=lambda each: each[0])
    return f"{number:,} {unit}"


def _typed(num_bytes: int) -> str:
    return size_words(num_bytes).replace(" ", "").replace(",", "")
