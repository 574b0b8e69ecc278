"""One line of `make doctor`: what was looked at, how it stands, what was seen, what mends it.

Plain data, standard library only, and readable by any Python 3: the front door makes such lines
before there is an environment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

OK = "ok"
WARNING = "warning"
FAULT = "fault"
NOT_HERE = "not_here"
SKIPPED = "skipped"


class Check(NamedTuple):
    """`state`: `fault` is what a lab cannot do without; `not_here` is what only some things need.

    What is `skipped` was not tried, and `seen` says why. `fix` holds alternatives; a remark stands
    behind a command after several blanks.
    """

    name: str
    state: str
    seen: str
    fix: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The contract's object; `fix` is one text, or null."""
        fix = " or: ".join(" ".join(each.split()) for each in self.fix)
        return {"name": self.name, "state": self.state, "seen": self.seen, "fix": fix or None}


def has_fault(checks: Iterable[Check]) -> bool:
    return any(check.state == FAULT for check in checks)
