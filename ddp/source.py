"""Code of one's own, found by its import path.

Owns reading, hashing and running it, and how what goes wrong in it is told: by its own line. What
it is good for is decided by whoever asks. `key` is what a message calls the thing that named it.
"""

import hashlib
import importlib
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ddp.errors import OwnCodeError
from ddp.importpath import ImportPath, parse

MARK = "__ddplab_own__"
"""Set in a module that was loaded here: what its faults are told as, and its SHA-256."""
PIN_LENGTH = 12
_OWN = "ddplab_own_file_"


@dataclass(frozen=True)
class Source:
    """A file as it was read, ready to run."""

    path: Path
    sha256: str
    code: CodeType


@dataclass(frozen=True)
class Loaded:
    """What was found; `path` is its file, and `where` says it for every process, pinned."""

    value: Any
    path: str
    sha256: str
    where: ImportPath


def load(text: str, key: str, kind: type | None = None) -> Loaded:
    """Runs the file or imports the module, once in a process, and finds what is named in it.

    `kind` as for `find`. Raises OwnCodeError with the line of the file where one is to blame.
    """
    it = parse(text, key).anchored(Path.cwd())
    module = _file_module(it, key) if it.is_file else _imported(it, key)
    path, sha256 = str(module.__file__), str(vars(module)[MARK][1])
    if not sha256.startswith(it.pin):
        raise OwnCodeError(
            f"{key}: {path} is not what it was: its SHA-256 begins with {sha256[:PIN_LENGTH]}, "
            f"not {it.pin}",
            rule="a plan is carried out by the code that it was made with",
            fix="bring that file back, or make a new plan",
        )
    value = find(module, it.function, path, key, kind)
    return Loaded(value, path, sha256, replace(it, pin=sha256[:PIN_LENGTH]))


def read_source(path: Path, key: str) -> Source:
    """Raises OwnCodeError where the file cannot be read, or is not Python."""
    content = _read(path, key)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is dubious in the file is not ours to tell
            code = compile(content, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as exc:  # ValueError: a zero byte
        line = getattr(exc, "lineno", None)
        where = f"{path}:{line}" if line else f"{path}"
        raise OwnCodeError(
            f"{key}: {where}: {type(exc).__name__}: {getattr(exc, 'msg', exc)}",
            rule="the file is Python",
            fix=f"mend it: python3 -m py_compile {path}",
        ) from exc
    return Source(path, hashlib.sha256(content).hexdigest(), code)


def _read(path: Path, key: str) -> bytes:
    rule = "a Python file that every node can read"
    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait for ever
            raise OwnCodeError(f"{key}: {path}: no ordinary file", rule=rule)
        return path.read_bytes()
    except OSError as exc:
        fix = f'write the path of a file: "/path/to/{path.name}"'
        raise OwnCodeError(f"{key}: {path}: {exc.strerror}", rule=rule, fix=fix) from exc


def run(source: Source, name: str, key: str) -> ModuleType:
    """The file as a module of that name. What it raises is passed on as it is."""
    module = ModuleType(name)
    module.__file__ = str(source.path)
    setattr(module, MARK, (key, source.sha256))
    _look_in(str(source.path.parent))
    sys.modules[name] = module  # dataclasses look themselves up there
    try:
        exec(source.code, module.__dict__)
    except BaseException:
        del sys.modules[name]  # half of it is none
        raise
    return module


def _look_in(folder: str) -> None:
    if folder not in sys.path:  # last, so that its neighbours never hide a module of ours
        sys.path.append(folder)


def find(module: ModuleType, name: str, path: str, key: str, kind: type | None = None) -> Any:
    """What the module calls `name`: something to call, or, where one is given, of that kind.

    Raises OwnCodeError, with the nearest name, where it has none.
    """
    found = getattr(module, name, None)
    if callable(found) or (kind is not None and isinstance(found, kind)):
        return found
    own = _own_names(module)
    nearest = (get_close_matches(name, own, n=1) or [*own, "build"])[0]
    raise OwnCodeError(
        f"{key}: {path}: " + (f"no {name} in it" if found is None else f"{name} is no function"),
        rule=f"the function is one that the file has: {', '.join(own[:12]) or 'none so far'}",
        fix=f'write "{path}:{nearest}"',
    )


def _own_names(module: ModuleType) -> list[str]:
    """The functions and classes that were written in it."""
    return [
        each
        for each, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__
    ]


def _file_module(it: ImportPath, key: str) -> ModuleType:
    if it.pin and (known := sys.modules.get(_module_name(it.place, it.pin))):
        return known
    source = read_source(Path(it.place), key)
    name = _module_name(it.place, source.sha256[:PIN_LENGTH])
    if name in sys.modules:
        return sys.modules[name]
    with blamed(key, it.place):
        return run(source, name, key)


def _module_name(path: str, pin: str) -> str:
    place = hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()
    return f"{_OWN}{place[:8]}_{pin}"


def module_words(name: str) -> str:
    """How plans and people call a module: a file of the user's own by its name and its hash."""
    if not name.startswith(_OWN):
        return name
    module = sys.modules[name]
    return f"{Path(str(module.__file__)).stem}@{vars(module)[MARK][1][:PIN_LENGTH]}"


def _imported(it: ImportPath, key: str) -> ModuleType:
    if it.folder:
        _look_in(it.folder)
    try:
        with blamed(key, it.module):
            module = importlib.import_module(it.module)
    except OwnCodeError as exc:
        missing = exc.__cause__
        if isinstance(missing, ModuleNotFoundError) and _leads_to(missing.name, it.module):
            raise OwnCodeError(
                f"{key}: no module {missing.name} for {it.module}",
                rule="a module lies in the folder of the job file, in the one where the command "
                "is given, or is installed",
                fix=f'write the path of its file: "path/to/{it.module.rpartition(".")[2]}.py:'
                f'{it.function}"',
            ) from missing
        raise
    file = getattr(module, "__file__", None)
    if not file or (it.folder and not Path(file).is_relative_to(it.folder)):
        raise OwnCodeError(
            f"{key}: {it.module} is {file or 'no file'}",
            rule=f"a module below {it.folder}" if it.folder else "a module has a file",
            fix="give it a name that no other module has, or write the path of its file",
        )
    if MARK not in vars(module):
        sha256 = hashlib.sha256(Path(file).read_bytes()).hexdigest()
        setattr(module, MARK, (key, sha256))
    return module


def _leads_to(missing: str | None, module: str) -> bool:
    return missing is not None and f"{module}.".startswith(f"{missing}.")


@contextmanager
def blamed(key: str, place: str) -> Iterator[None]:
    """Whatever the user's code raises inside becomes one message that names its line."""
    try:
        yield
    except OwnCodeError:
        raise
    except (Exception, SystemExit) as exc:
        raise blame(exc) or in_words(exc, f"{key}: {_last_place(exc) or place}") from exc


def blame(error: BaseException) -> OwnCodeError | None:
    """The same, named after the line of the user's file that it came from; None: from elsewhere."""
    places = [
        f"{frame.f_globals[MARK][0]}: {frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if MARK in frame.f_globals
    ]
    return in_words(error, places[-1]) if places else None


def _last_place(error: BaseException) -> str | None:
    """For a module that is not known yet: the last line that is neither ours nor the importer's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [
        (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    names = [
        f"{name}:{line}"
        for name, line in frames
        if name != __file__ and not name.startswith(("<", importlib.__file__))
    ]
    return names[-1] if names else None


def in_words(error: BaseException, where: str) -> OwnCodeError:
    """An error of the user's code, as one line that begins with where it happened."""
    first_line = str(getattr(error, "msg", error)).strip().partition("\n")[0]
    told = f"{type(error).__name__}: {first_line}".removesuffix(": ")
    fix = None
    if isinstance(error, ModuleNotFoundError):
        fix = "install it beside torch, in the environment that ddplab runs in"
    return OwnCodeError(f"{where}: {told}", fix=fix)
