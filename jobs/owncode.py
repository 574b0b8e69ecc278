"""What a job names of the user's own besides its model: an algorithm or a hook, by import path.

Owns where such a path leads, the look at it before anything is started, and what it is called on
screens and in records. Finding and running it is ddp's.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddp.algorithms import ALGORITHMS, find_algorithm, is_known
from ddp.algorithms.own import file_of
from ddp.errors import DdpError, OwnCodeError, UsageError
from ddp.fabric import Fabric
from ddp.importpath import is_import_path, parse
from ddp.source import load
from jobs.errors import JobSpecError
from jobs.modelfile import ModelFile

if TYPE_CHECKING:
    from jobs.sections import DdpSpec

HOOK = "hook"


@dataclass(frozen=True)
class FoundHook:
    """What a job's hook led to, and the file that it is in."""

    hook: Callable[[Any, Any], Any]
    file: ModelFile


def find_hook(text: str) -> FoundHook:
    """Raises OwnCodeError."""
    found = load(text, HOOK)
    return FoundHook(found.value, ModelFile(found.path, found.where.function, found.sha256))


def require_path(text: str) -> str:
    """Raises JobSpecError for what cannot be an import path; nothing is looked for yet."""
    try:
        parse(text)
    except OwnCodeError as exc:
        raise JobSpecError(exc.message, exc.rule, exc.fix) from exc
    return text


def require_algorithm(name: str) -> str:
    """Raises JobSpecError for a name that is none of ours, and no import path either."""
    if is_import_path(name):
        return require_path(name)
    if name in ALGORITHMS:
        return name
    near = get_close_matches(name, ALGORITHMS, n=1)
    raise JobSpecError(
        f"unknown algorithm {name[:120]!r}",
        rule=f"is one of {', '.join(ALGORITHMS)}, or the place of one of your own: my.py:build",
        fix=f"write {near[0] if near else next(iter(ALGORITHMS))}",
    )


def reduces(algorithm: str) -> bool:
    """Whether ranks end alike; one of the user's own always reduces."""
    return is_import_path(algorithm) or find_algorithm(algorithm).proof != "none"


def anchored(text: str, folder: Path) -> str:
    """The same code from whatever folder a rank runs in; a name of ours as it is."""
    return str(parse(text).anchored(folder)) if is_import_path(text) else text


def own_paths(spec: "DdpSpec") -> list[Path]:
    """What nodes must be able to read: the file, or the folder that the module lies in."""
    named = [parse(text) for text in (spec.algorithm, spec.hook) if text and is_import_path(text)]
    return [Path(it.place if it.is_file else it.folder) for it in named if "/" in it.place]


def check_own_code(spec: "DdpSpec", node_of: tuple[int, ...]) -> None:
    """Loads what is named, and proves its schedule for these ranks. Raises JobSpecError."""
    try:
        if spec.hook is not None:
            find_hook(spec.hook)
        elif is_import_path(spec.algorithm):
            _prove(spec, Fabric(node_of))
    except OwnCodeError as exc:
        raise JobSpecError(f"ddp.{exc.message}", exc.rule, exc.fix) from exc
    except UsageError as exc:  # it says itself what it serves
        raise JobSpecError(f"ddp.algorithm: {exc}") from exc
    except DdpError as exc:
        raise JobSpecError(
            f"ddp.algorithm: {exc}".replace("algorithm: algorithm: ", "algorithm: ", 1),
            rule="every rank ends with every rank's part, once",
            fix=f"make proof algorithms ALGORITHM={spec.algorithm}, until it is proven",
        ) from exc


def _prove(spec: "DdpSpec", fabric: Fabric) -> None:
    build = find_algorithm(spec.algorithm).build
    assert build is not None
    schedule = build(fabric, spec.ring_order, spec.ring_seed)
    from ddp.replay import prove  # torch is slow to import

    prove(schedule)


def look_for(text: str, key: str) -> str:
    """The same place for every process. Raises JobSpecError where nothing of use is there."""
    place = str(parse(require_path(text)).anchored(Path.cwd()))
    try:
        return find_algorithm(place).name if key == "algorithm" else _hook_at(place)
    except DdpError as exc:
        fix = getattr(exc, "fix", None)
        raise JobSpecError(
            str(getattr(exc, "message", exc)), getattr(exc, "rule", None), fix
        ) from exc


def _hook_at(place: str) -> str:
    find_hook(place)
    return place


def algorithm_file(spec: "DdpSpec") -> ModelFile | None:
    """What run.json says of an algorithm of the user's own; None of one of ours."""
    if not is_import_path(spec.algorithm):
        return None
    found = file_of(spec.algorithm)
    return ModelFile(found.path, found.where.function, found.sha256)


def algorithm_name(ddp: Mapping[str, Any]) -> str:
    """How tables call what reduces; `ddp` is that section of a job, as JSON."""
    hook = ddp.get(HOOK)
    return f"hook {short(hook)}" if hook else short(ddp["algorithm"])


def algorithm_summary(spec: "DdpSpec") -> str:
    """One sentence on it."""
    if spec.hook is not None:
        return "A communication hook makes the mean; what it sends is not counted."
    return find_algorithm(spec.algorithm).summary


def short(text: str) -> str:
    """`my:build` of a path, the name itself of one of ours."""
    return parse(text).short if is_import_path(text) else text


def job_name(algorithm: str) -> str:
    """For a job that is another one with this algorithm. Raises JobSpecError."""
    name = short(require_path(algorithm)) if is_import_path(algorithm) else algorithm
    return re.sub("[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:64] or "own"


def can_price(plan: Mapping[str, Any]) -> bool:
    """Whether what a plan, as JSON, sends can be told: not of a hook, nor where code of the user's
    own has changed since.
    """
    try:
        return is_known(plan["algorithm"]) and find_algorithm(plan["algorithm"]) is not None
    except DdpError:
        return False
