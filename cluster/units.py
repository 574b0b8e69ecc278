"""Text with units to numbers and back: the only place where `200mbit` is read.

Rates are bits per second, as tc spells them; durations are seconds; shares are ratios 0..1;
amounts of memory are bytes.
What could be read in two ways is refused, with both readings.
"""

import re
from decimal import Decimal

from cluster.errors import UnitError

UNLIMITED = "unlimited"
MIN_RATE_BITS_PER_S = 1_000_000
MAX_RATE_BITS_PER_S = 1_000_000_000_000

_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_NUMBER = r"(?P<number>[0-9]+(?:\.[0-9]+)?)"
_BITS = re.compile(_NUMBER + r"\s?(?P<prefix>[kmgKMG]?)[bB]it(?:/s)?")
_BYTES = re.compile(_NUMBER + r"\s?(?P<prefix>[kKMG]?)B/s")
_LOOSE = re.compile(r"\s*(?P<sign>[-+]?)\s*(?P<number>[0-9][0-9_]*(?:\.[0-9]+)?)(?P<rest>.*?)\s*")
_EXPONENT = re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+.*")
LONGEST_TEXT = 60
_RATE_FIX = "write 200mbit (bits) or 25MB/s (bytes)"
_RULE = "a rate is a number with bit, kbit, mbit, gbit, or B/s, KB/s, MB/s, GB/s"


def parse_rate(text: object, most: int | None = MAX_RATE_BITS_PER_S) -> int:
    """Bits per second of a rate such as `200mbit` or `25MB/s`. Raises UnitError.

    `most`: what the kernel can limit a link to; None where nothing is limited.
    """
    if not isinstance(text, str):
        raise _unreadable_rate(str(text))
    if len(text) > LONGEST_TEXT:
        raise UnitError(f"{text[:LONGEST_TEXT]!r}... is not a rate", _RULE, _RATE_FIX)
    for pattern, bits_per_unit in ((_BITS, 1), (_BYTES, 8)):
        if match := pattern.fullmatch(text.strip()):
            factor = _PREFIXES[match["prefix"].lower()] * bits_per_unit
            return _checked_rate(text.strip(), Decimal(match["number"]) * factor, most)
    raise _unreadable_rate(text)


def parse_optional_rate(text: object) -> int | None:
    """As parse_rate, and None for `unlimited`."""
    return None if text == UNLIMITED else parse_rate(text)


def _checked_rate(text: str, bits_per_s: Decimal, most: int | None = MAX_RATE_BITS_PER_S) -> int:
    if bits_per_s < MIN_RATE_BITS_PER_S:
        low = "must be above 0" if bits_per_s == 0 else f"is {bits_per_s:,f} bits/s"
        raise UnitError(
            f"{text!r} {low}",
            f"the slowest link is {format_rate(MIN_RATE_BITS_PER_S)}: "
            "slower ones take minutes to measure",
            f"write {format_rate(MIN_RATE_BITS_PER_S)} or more, or {UNLIMITED} for no limit",
        )
    if most is not None and bits_per_s > most:
        fastest = format_rate(most)
        raise UnitError(
            f"{text!r} is {bits_per_s:,f} bits/s",
            f"the fastest link is {fastest}",
            f"write {fastest} or less, or {UNLIMITED} for no limit",
        )
    if bits_per_s % 8:
        nearest = format_rate(max(8, round(bits_per_s / 8) * 8))
        raise UnitError(
            f"{text!r} is {bits_per_s:,f} bits/s",
            "the kernel limits whole bytes per second, so bits must divide by 8",
            f"write {nearest}",
        )
    return int(bits_per_s)


def _unreadable_rate(text: str) -> UnitError:
    """The error for a text that is no rate: what it could mean, spelt both ways."""
    match = _LOOSE.fullmatch(text)
    if match is None or _EXPONENT.fullmatch(text.strip()):
        return UnitError(f"{text!r} is not a rate", _RULE, _RATE_FIX)
    number, rest = match["number"].replace("_", ""), match["rest"].strip()
    if match["sign"] == "-":
        return UnitError(f"{text!r} is negative", _RULE, f"write {number}mbit, or {UNLIMITED}")
    if not Decimal(number):
        return UnitError(f"{text!r} is no rate", "a rate is above 0", f"write {UNLIMITED}")
    prefix = rest[:1].lower() if rest[:1].lower() in ("k", "m", "g") else ""
    if re.match(r"[kKmMgGtT]i", rest):
        amount = Decimal(number) * 1024 ** ("kmgt".index(rest[0].lower()) + 1)
        exact = f"{amount:f}B/s" if "B" in rest else f"{amount:f}bit"
        return UnitError(
            f"{text!r} has a binary prefix",
            "prefixes are powers of 1000 here",
            f"write {number}{prefix}bit (powers of 1000), or {exact} for exactly that",
        )
    return _two_meanings(text, number, rest, prefix)


def _two_meanings(text: str, number: str, rest: str, prefix: str) -> UnitError:
    if "_" in text and rest:
        return UnitError(f"{text!r} is not a rate", _RULE, f"write {number}{rest}")
    if re.fullmatch(r"[tT]bit(/s)?|TB/s", rest):
        bits_per_s = Decimal(number) * 10**12 * (8 if "B" in rest else 1)
        fix = f"write {format_rate(_checked_rate(text, bits_per_s))}"
        return UnitError(f"{text!r} has the unknown unit {rest!r}", _RULE, fix)
    if not rest:
        prefix, why = "m", "it has no unit"
    elif "ps" in rest.lower():
        why = "tc reads 'bps' as bytes, people read it as bits"
    elif rest.lower().removesuffix("/s") in ("b", "kb", "mb", "gb"):
        why = "'b' may be bits or bytes"
    else:
        return UnitError(
            f"{text!r} has the unknown unit {rest!r}",
            _RULE,
            f"write {number}{prefix or 'm'}bit (bits) or {number}{(prefix or 'm').upper()}B/s",
        )
    as_bytes = Decimal(number) * 8 * _PREFIXES[prefix]
    return UnitError(
        f"{text!r} could be bits or bytes: {why}",
        _RULE,
        f"write {number}{prefix}bit (bits), or {number}{prefix.upper()}B/s "
        f"(bytes, which is {format_rate(int(as_bytes))})",
    )


def format_rate(bits_per_s: int | None) -> str:
    """The shortest exact text that parse_optional_rate reads back."""
    if bits_per_s is None:
        return UNLIMITED
    for prefix in ("g", "m", "k"):
        value = Decimal(bits_per_s) / _PREFIXES[prefix]
        if value >= 1 and value == value.quantize(Decimal("0.001")):
            return f"{value.normalize():f}{prefix}bit"
    return f"{bits_per_s}bit"


_DURATION = re.compile(_NUMBER + r"\s?(?P<unit>us|ms|s)")
_SECONDS = {"us": Decimal("0.000001"), "ms": Decimal("0.001"), "s": Decimal(1)}


def parse_duration(text: object) -> float:
    """Seconds of a duration such as `10ms`. Raises UnitError."""
    match = _DURATION.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise UnitError(
            f"{text!r} is not a duration", "a duration is a number with us, ms or s", "write 10ms"
        )
    return float(Decimal(match["number"]) * _SECONDS[match["unit"]])


def format_duration(seconds: float) -> str:
    """Whole microseconds, in the largest unit that stays exact."""
    microseconds = round(seconds * 1e6)
    for unit, size in (("s", 10**6), ("ms", 10**3)):
        if microseconds and microseconds % size == 0:
            return f"{microseconds // size}{unit}"
    return f"{microseconds}us"


_PERCENT = re.compile(_NUMBER + r"\s?%")


def parse_share(text: object) -> float:
    """The ratio 0..1 of a percentage such as `0.1%`. Raises UnitError."""
    match = _PERCENT.fullmatch(text.strip()) if isinstance(text, str) else None
    ratio = Decimal(match["number"]) / 100 if match else None
    if ratio is None or ratio >= 1:
        raise UnitError(
            f"{text!r} is not a share of packets",
            "a loss is a percentage from 0% to under 100%",
            "write 0.1% (one packet in a thousand)",
        )
    return float(ratio)


def format_share(ratio: float) -> str:
    """The percentage that parse_share reads back."""
    return f"{Decimal(str(ratio)) * 100:f}".rstrip("0").rstrip(".") + "%" if ratio else "0%"


_MEMORY = re.compile(_NUMBER + r"\s?(?P<unit>[MG]i?B)")
_MEMORY_BYTES = {"MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}
_MEMORY_LOOSE = re.compile(_NUMBER + r"\s?(?P<unit>[mMgG])(i?[bB])?")
MIN_MEMORY_BYTES = 100_000_000


def parse_memory(text: object) -> int:
    """Bytes of an amount of memory such as `2GB` or `512MiB`. Raises UnitError."""
    rule = "memory is a number with MB, GB (powers of 1000), MiB or GiB (powers of 1024)"
    told = text.strip() if isinstance(text, str) and len(text) <= LONGEST_TEXT else ""
    match = _MEMORY.fullmatch(told)
    if match is None:
        loose = _MEMORY_LOOSE.fullmatch(told)
        unit = loose["unit"].upper() if loose else "G"
        number = loose["number"] if loose else "2"
        fix = f"write {number}{unit}B (powers of 1000) or {number}{unit}iB (of 1024)"
        raise UnitError(f"{str(text)[:LONGEST_TEXT]!r} is not an amount of memory", rule, fix)
    num_bytes = int(Decimal(match["number"]) * _MEMORY_BYTES[match["unit"]])
    if num_bytes < MIN_MEMORY_BYTES:
        least = format_memory(MIN_MEMORY_BYTES)
        raise UnitError(f"{told!r} is too little", "no rank starts in less", f"{least} or more")
    return num_bytes


def format_memory(num_bytes: int) -> str:
    """The text that parse_memory reads back: exact, in the largest unit that is whole, or MB."""
    for unit in ("GB", "GiB", "MB", "MiB"):
        if num_bytes % _MEMORY_BYTES[unit] == 0:
            return f"{num_bytes // _MEMORY_BYTES[unit]}{unit}"
    return f"{Decimal(num_bytes) / 10**6:f}MB"
