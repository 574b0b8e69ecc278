"""VERBS: every word of the Makefile, the variables it takes, and the ddplab command it stands for.

Pure data and text. Does not know how variables are read or how the environment is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

from tools.variables import VARIABLES


class Verb(NamedTuple):
    """One target; `layer` is the environment it needs: "", or one of tools.environment.LAYERS.

    It stands for `command`, a program of the environment, or for `module`, run as python -m.
    `words` are those that may follow it, and are its command's: make proof algorithms.
    """

    summary: str
    takes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    needs_one_of: tuple[str, ...] = ()
    layer: str = "run"
    command: tuple[str, ...] = ()
    module: str = ""
    words: tuple[str, ...] = ()


_CHOICES = ("TORCH", "TORCH_INDEX_URL", "PYTHON")
_SITE = ("BACKEND", "ADDRESS", "FABRIC", "RANKS_PER_NODE", "STRATEGY")
_PARALLEL = ("--numprocesses=auto", "--maxprocesses=4", "--dist=loadfile", "--no-loadscope-reorder")

VERBS: dict[str, Verb] = {
    "cluster-up": Verb(
        "start the lab and measure its links",
        (
            *("CLUSTER", "RATE", "BACKEND", "LAB", "SUBNET", "MONITORING"),
            *("PRIVILEGE", "DRY_RUN"),
        ),
        command=("ddplab", "up"),
    ),
    "run": Verb(
        "train on it; see where a step's time goes",
        ("JOB", "ALGORITHM", "STEPS", "SET", "DATA", "LAB", "RATE", *_SITE, "NODES"),
        ("JOB",),
        command=("ddplab", "run"),
    ),
    "runs": Verb("list the runs kept in runs/", command=("ddplab", "runs")),
    "cluster-status": Verb("what is up now", ("LAB",), command=("ddplab", "status")),
    "cluster-down": Verb("stop the lab", ("LAB",), command=("ddplab", "down")),
    "cluster-probe": Verb("measure the links again", ("LAB",), command=("ddplab", "probe")),
    "link": Verb(
        "change a link, also while a job runs",
        ("NODE", "RATE", "INTRA_RATE", "LAB", "DRY_RUN"),
        ("NODE",),
        command=("ddplab", "link"),
    ),
    "ray-up": Verb(
        "start a Ray cluster inside the lab's nodes",
        ("LAB",),
        layer="ray",
        command=("ddplab", "ray-up"),
    ),
    "ray-down": Verb(
        "end it; the lab stays", ("LAB",), layer="ray", command=("ddplab", "ray-down")
    ),
    "runs-clean": Verb(
        "delete all runs but the newest KEEP",
        ("KEEP",),
        ("KEEP",),
        command=("ddplab", "runs-clean"),
    ),
    "compare": Verb(
        "which way to reduce is faster, in turn",
        (
            *(
                "JOBS",
                "ALGORITHM",
                "RUNS",
                "BASE",
                "MAX_SLOWDOWN",
                "ROUNDS",
                "STEPS",
                "SET",
                "DATA",
            ),
            *("ALLOW_DIFFERENT", "LAB", "RATE", *_SITE, "NODES"),
        ),
        needs_one_of=("JOBS", "RUNS"),
        command=("ddplab", "compare"),
    ),
    "scale": Verb(
        "how efficiency falls as nodes are added",
        (
            *("JOBS", "ALGORITHM", "NODES", "CLUSTER", "RATE", "SCALING", "SET", "DATA"),
            *("ROUNDS", "STEPS", "LAB", "PRIVILEGE", *_SITE),
        ),
        ("JOBS", "NODES"),
        command=("ddplab", "scale"),
    ),
    "bench": Verb(
        "all-reduces side by side, without training",
        (
            *("SIZES", "MINBYTES", "MAXBYTES", "STEPFACTOR", "ITERS", "WARMUP_ITERS"),
            *("ALGORITHMS", "DTYPE", "RING_ORDER", "PLACEMENT", "BUSBW", "CHECK"),
            *("LAB", "RATE", *_SITE, "NODES"),
        ),
        command=("ddplab", "bench", "allreduce"),
    ),
    "collect": Verb(
        "torchrun on machines that share no folder: one run",
        ("FROM", "OUT"),
        ("FROM", "OUT"),
        command=("ddplab", "collect"),
    ),
    "predict": Verb(
        "what a step costs on a cluster you lack",
        (
            *("EXAMPLE", "PARAMETERS", "DTYPE", "BYTES", "NODES", "RANKS_PER_NODE", "NICS"),
            *("RATE", "LATENCY", "INTRA_RATE", "INTRA_LATENCY", "COMPUTE", "OVERLAP", "CALIBRATE"),
        ),
        command=("ddplab", "predict"),
    ),
    "proof": Verb(
        "prove the gradients; or: proof algorithms",
        ("ALL", "ALGORITHM", "HOOK"),
        command=("ddplab", "proof"),
        words=("algorithms",),
    ),
    "doctor": Verb(
        "what this machine lacks, and the fix",
        ("CLUSTER", "RATE", "PRIVILEGE", "QUICK"),
        layer="",
        command=("ddplab", "doctor"),
    ),
    "base-image": Verb(
        "make the image that nodes in containers start from, without a registry",
        layer="",
    ),
    "setup": Verb("make the environment now, or another one", _CHOICES),
    "test": Verb(
        "run the tests",
        _CHOICES,
        layer="dev",
        command=("pytest", *_PARALLEL),
    ),
    "check": Verb(
        "format, lint, types, imports, sizes", _CHOICES, layer="dev", module="tools.check"
    ),
    "lessons": Verb("run each lesson: docs/lessons.md's tables", module="tools.lessons"),
    "benchmarks": Verb("time the lab: docs/benchmarks.md's tables", module="tools.benchmarks"),
    "bench-ddp": Verb(
        "time the wrapper beside stock DDP",
        ("CHECK",),
        module="tools.bench_ddp",
    ),
    "help": Verb("this list", layer=""),
}
NUM_FIRST = 5
"""So many verbs at the head of VERBS are the ones that matter to somebody new."""
HELP_WIDTH = 100

_OPTIONS = (
    *("NODE", "NODES", "CLUSTER", "RATE", "INTRA_RATE", "SCALING", "BACKEND", "LAB", "SUBNET"),
    *_SITE[1:],
    *(
        "ALGORITHM",
        "HOOK",
        "PRIVILEGE",
        "ROUNDS",
        "STEPS",
        "DATA",
        "KEEP",
        "OUT",
        "RUNS",
        "BASE",
        "MAX_SLOWDOWN",
    ),
    *("PARAMETERS", "DTYPE", "BYTES", "NICS", "LATENCY", "INTRA_LATENCY", "COMPUTE", "OVERLAP"),
    "CALIBRATE",
    *("SIZES", "MINBYTES", "MAXBYTES", "STEPFACTOR", "ITERS", "WARMUP_ITERS", "ALGORITHMS"),
    *("RING_ORDER", "PLACEMENT"),
)
FLAGS = ("ALL", "ALLOW_DIFFERENT", "BUSBW", "CHECK", "DRY_RUN", "EXAMPLE", "MONITORING", "QUICK")
"""Variables that have one value, 1, and stand for an option without one."""


def arguments(verb: str, given: Mapping[str, str]) -> list[str]:
    """The command `verb` stands for; each value is one argument, whatever characters are in it."""
    words = list(VERBS[verb].command)
    words += [
        f"--{name.lower().replace('_', '-')}={given[name]}" for name in _OPTIONS if name in given
    ]
    words += [f"--{name.lower().replace('_', '-')}" for name in FLAGS if name in given]
    words += [f"--set={setting}" for setting in split_settings(given.get("SET", ""))]
    several = given.get("JOBS", "") or given.get("FROM", "")
    named = [given["JOB"]] if "JOB" in given else several.split()
    return [*words, "--", *named] if named else words


def split_settings(text: str) -> list[str]:
    """`a.b=1 c={d: 2, e: 3} f=x y` is three settings: one begins where a word has a `=`."""
    settings: list[str] = []
    for word in text.strip().split(" "):
        name, equals, _ = word.partition("=")
        begins = equals and name.replace(".", "").replace("_", "").isalnum()
        if begins or not settings:
            settings.append(word)
        else:
            settings[-1] += " " + word
    return [setting.strip() for setting in settings if setting.strip()]


def help_screen(root: Path) -> str:
    """All verbs, a line each, the first five apart, then the variables."""
    lines = ["ddplab: a small cluster on this machine, with links as slow as you ask", ""]
    for number, (name, verb) in enumerate(VERBS.items()):
        if number == NUM_FIRST:
            lines.append("")
        word = "run JOB=hier" if name == "run" else name
        lines += _help_lines(word, verb)
    lines += ["", "variables, typed behind the word (NAME=value):"]
    for name in VARIABLES:
        lines += _indented(f"  {name:16} ", meaning(name, root).split(" "))
    return "\n".join(lines)


def _help_lines(word: str, verb: Verb) -> list[str]:
    """One line, and another for variables that it has no room for."""
    head = f"  make {word:15} {verb.summary:42} "
    return _indented(head, verb.takes)


def _indented(head: str, words: Sequence[str]) -> list[str]:
    """`head`, and the words beside it, as many lines as they need."""
    room = HELP_WIDTH - len(head)
    first, *more = wrap(" ".join(words), room, break_on_hyphens=False) or [""]
    return [(head + first).rstrip(), *(" " * len(head) + each for each in more)]


def meaning(name: str, root: Path) -> str:
    """What a variable means, with the names that lie ready for it."""
    known = {"clusters": catalog(root, "cluster"), "jobs": catalog(root, "jobs")}
    return VARIABLES[name].format(**known)


def catalog(root: Path, package: str) -> str:
    """The names of what lies ready in a package's catalog, such as "2x2 2x4"."""
    return " ".join(sorted(file.stem for file in (root / package / "catalog").glob("*.yaml")))
