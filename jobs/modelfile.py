"""The Python file of a model of one's own, before it runs: read, hashed, compiled. Needs no torch.

Owns what is recorded of it, and how its faults are told in jobs. Reading is `ddp.source`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ddp import source
from ddp.errors import OwnCodeError
from jobs.errors import ModelError
from jobs.modelspec import OwnSpec

MODULE_NAME = "ddplab_own_model_"
KEY = "model.import"
WHOLE = "the whole traceback is in the rank<k>.log files in runs/latest"


@dataclass(frozen=True)
class ModelFile:
    """Where code of one's own came from; `sha256` is that of the bytes that ran."""

    path: str
    function: str
    sha256: str


@dataclass(frozen=True)
class Source:
    """The file as it was read, ready to run."""

    file: ModelFile
    read: source.Source

    @property
    def module_name(self) -> str:
        """What the file is called as a module; nothing else begins like this."""
        return MODULE_NAME + self.file.sha256[:12]


def read_source(spec: OwnSpec) -> Source:
    """Raises ModelError where the file cannot be read, or is not Python."""
    with told_as_ours():
        read = source.read_source(spec.path, KEY)
    return Source(ModelFile(str(spec.path), spec.function, read.sha256), read)


@contextmanager
def told_as_ours() -> Iterator[None]:
    """What ddp says of the user's file, as an error of jobs."""
    try:
        yield
    except OwnCodeError as exc:
        raise ModelError(exc.message, exc.rule, exc.fix) from exc


def blame(error: BaseException) -> ModelError | None:
    """The same, named after the line of the user's file that it came from; None: from elsewhere."""
    told = source.blame(error)
    return _with_fix(told) if told else None


def in_words(error: BaseException, where: str) -> ModelError:
    """An error of the user's code, as one line that begins with where it happened."""
    return _with_fix(source.in_words(error, where))


def _with_fix(told: OwnCodeError) -> ModelError:
    return ModelError(told.message, told.rule, told.fix or WHOLE)
