"""The tree of what can go wrong here. Owns how it looks on the screen.

FrontDoorError    a person can cause it and repair it
CommandError      a command of a set-up ended badly; tools/build.py makes the first out of it
"""

from __future__ import annotations


class FrontDoorError(Exception):
    """A headline, then the value seen, the rule, and the fix; shown without a traceback."""

    def __init__(self, headline: str, *, seen: str, rule: str, fix: str, note: str = "") -> None:
        super().__init__(headline)
        self.headline = headline
        self.rows = (("seen", seen), ("rule", rule), ("fix", fix))
        self.note = note

    def screen(self) -> str:
        """The whole message, a part a line; further lines of a part are indented under it."""
        lines = [f"ddplab: {self.headline}", ""]
        for label, text in self.rows:
            for number, line in enumerate(text.splitlines()):
                lines.append(f"  {label if number == 0 else '':6}  {line}")
        if self.note:
            lines += ["", self.note]
        return "\n".join(lines)


class CommandError(Exception):
    """A command of a set-up ended badly; carries what a person needs to see."""

    def __init__(self, label: str, last_lines: list[str]) -> None:
        super().__init__(label)
        self.label = label
        self.last_lines = last_lines
