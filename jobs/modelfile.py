"""The Python file of a model of one's own, before it runs: read, hashed, compiled. Needs no torch.

Owns which bytes are meant, so that what is recorded is what ran, and how a place in it is named.
"""

import hashlib
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

from jobs.errors import ModelError
from jobs.modelspec import OwnSpec

MODULE_NAME = "ddplab_own_model_"
KEY = "model.import"


@dataclass(frozen=True)
class ModelFile:
    """Where a model of one's own came from; `sha256` is that of the bytes that ran."""

    path: str
    function: str
    sha256: str


@dataclass(frozen=True)
class Source:
    """The file as it was read, ready to run."""

    file: ModelFile
    code: CodeType

    @property
    def module_name(self) -> str:
        """What the file is called as a module; nothing else begins like this."""
        return MODULE_NAME + self.file.sha256[:12]


def read_source(spec: OwnSpec) -> Source:
    """Raises ModelError where the file cannot be read, or is not Python."""
    path = spec.path
    content = _read(path)
    file = ModelFile(str(path), spec.function, hashlib.sha256(content).hexdigest())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is dubious in the file is not ours to tell
            code = compile(content, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as exc:  # ValueError: a zero byte
        line = getattr(exc, "lineno", None)
        where = f"{path}:{line}" if line else f"{path}"
        raise ModelError(
            f"{KEY}: {where}: {type(exc).__name__}: {getattr(exc, 'msg', exc)}",
            rule="the file is Python",
            fix=f"mend it: python3 -m py_compile {path}",
        ) from exc
    return Source(file, code)


def _read(path: Path) -> bytes:
    rule = "a Python file that every node can read"
    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait for ever
            raise ModelError(f"{KEY}: {path}: no ordinary file", rule=rule)
        return path.read_bytes()
    except OSError as exc:
        raise ModelError(
            f"{KEY}: {path}: {exc.strerror}",
            rule=rule,
            fix='write model: {import: "/path/to/my.py:build"}',
        ) from exc


def blame(error: BaseException) -> ModelError | None:
    """The same, named after the line of the user's file that it came from; None: from elsewhere."""
    places = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__", "")).startswith(MODULE_NAME)
    ]
    return in_words(error, f"{KEY}: {places[-1]}") if places else None


def in_words(error: BaseException, where: str) -> ModelError:
    """An error of the user's code, as one line that begins with where it happened."""
    first_line = str(error).strip().partition("\n")[0]
    told = f"{type(error).__name__}: {first_line}".removesuffix(": ")
    fix = "the whole traceback is in the rank<k>.log files in runs/latest"
    if isinstance(error, ModuleNotFoundError):
        fix = "install it beside torch, in the environment that ddplab runs in"
    return ModelError(f"{where}: {told}", fix=fix)
