"""Where code of one's own lies, as text: `path/to/my.py:build`, or `pkg.module:build`.

Owns the shape of such a path. Pure: nothing is looked for but whether a module lies in a folder.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from ddp.errors import OwnCodeError

_SHAPE = re.compile(r"(?s)(.+):([^\W\d]\w*)(?:@([0-9a-f]{12}))?")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class ImportPath:
    """`place` is a file that ends in .py, or a module; a module may stand behind a folder.

    `pin`, where there is one, is how the SHA-256 of the file must begin.
    """

    place: str
    function: str
    pin: str = ""

    def __str__(self) -> str:
        return f"{self.place}:{self.function}" + (f"@{self.pin}" if self.pin else "")

    @property
    def is_file(self) -> bool:
        return self.place.endswith(".py")

    @property
    def folder(self) -> str:
        """Where a module is looked for; "" is wherever Python looks."""
        return self.place.rpartition("/")[0]

    @property
    def module(self) -> str:
        return self.place.rpartition("/")[2]

    @property
    def short(self) -> str:
        """For tables: the file's or module's own name, and the function's."""
        name = Path(self.place).stem if self.is_file else self.module.rpartition(".")[2]
        return f"{name}:{self.function}"

    def anchored(self, folder: Path) -> "ImportPath":
        """The same, whatever folder a process is in; relative ones count from `folder`.

        A module that is not found below it is left as it is, for Python to find.
        """
        if self.is_file:
            return replace(self, place=str((folder / Path(self.place).expanduser()).absolute()))
        base = (folder / Path(self.folder).expanduser()).absolute()
        below = base / self.module.replace(".", "/")
        if self.folder or below.with_suffix(".py").is_file() or (below / "__init__.py").is_file():
            return replace(self, place=f"{str(base).rstrip('/')}/{self.module}")
        return self


def is_import_path(text: str) -> bool:
    """Whether a name is meant as a place; names of ours have no colon."""
    return ":" in text and not text.startswith("hook ")


def is_pinned(text: str) -> bool:
    """Whether it is a place that was loaded, as `Loaded.where` says it."""
    match = _SHAPE.fullmatch(text)
    return match is not None and match[3] is not None


def parse(text: str, key: str = "") -> ImportPath:
    """Raises OwnCodeError for what names neither a file nor a module, and a function in it."""
    match = _SHAPE.fullmatch(text)
    place, function, pin = match.groups() if match else (text, "", "")
    found = ImportPath(place, function, pin or "")
    printable = text.isprintable() and len(text) < 4096
    if match and printable and (found.is_file or _MODULE.fullmatch(found.module)):
        return found
    raise OwnCodeError(
        (f"{key}: " if key else "") + repr(text[:120]),
        rule="is a Python file or a module, a colon, and the name of a function in it",
        fix='write "path/to/my.py:build" or "my_pkg.module:build"',
    )
