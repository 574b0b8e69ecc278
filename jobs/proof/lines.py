"""What a proof says: a line for each thing, proven or with the first difference that was found.

Owns the JSON contract. Proves nothing itself.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA = 1


@dataclass(frozen=True)
class Line:
    """`says` is what was held against what, in words. Proven where nothing differed."""

    name: str
    says: str
    first_difference: str | None = None

    @property
    def proven(self) -> bool:
        return self.first_difference is None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "proven": self.proven,
            "first_difference": self.first_difference,
        }


def to_json(lines: Sequence[Line]) -> dict[str, Any]:
    """The answer of `proof --json`; a proof of nothing is none."""
    return {
        "schema": SCHEMA,
        "ok": bool(lines) and all(line.proven for line in lines),
        "lines": [line.to_json() for line in lines],
    }


def first(differences: Iterable[str | None]) -> str | None:
    """The first one that is a difference."""
    return next((each for each in differences if each is not None), None)
