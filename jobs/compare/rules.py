"""What may differ between things that are compared: how gradients are reduced, and nothing else.

Owns the refusals. Whatever a job or a run says is compared unless it is named here, so that a key
that comes later is not forgotten.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.spec import ClusterSpec
from jobs.compare.comparison import ComparedRun
from jobs.errors import CompareError

MAY_DIFFER = ("name", "ddp", "expects_divergence", "baseline_steps")
MAY_DIFFER_IN_RUNS = ("train.steps", "data.path")  # what a path led to is told by its checksum
TOLD = "ALLOW_DIFFERENT=1, to see them side by side all the same"

Named = Sequence[tuple[str, Mapping[str, Any]]]  # label -> what it says


def job_differences(jobs: Named, also: Sequence[str] = ()) -> list[str]:
    """Every key by which jobs are not the same training; `also` are keys that may differ here."""
    return _differences([(label, _flat(job)) for label, job in jobs], (*MAY_DIFFER, *also))


def run_differences(runs: Sequence[ComparedRun]) -> list[str]:
    """The same for runs: also where they were, and that nobody changed the links meanwhile."""
    jobs = [(each.label, each.run["job"]) for each in runs]
    places = [(each.label, _flat(_place(each))) for each in runs]
    changed = [
        f"links: changed while {each.label} went on"
        for each in runs
        if each.run.get("link_changes")
    ]
    return [*job_differences(jobs, MAY_DIFFER_IN_RUNS), *_differences(places, ()), *changed]


def require_same(differences: Sequence[str], labels: Sequence[str]) -> None:
    """Raises CompareError where there is a difference."""
    if differences:
        raise CompareError(
            f"{', '.join(labels)}: not the same training",
            rule="only how gradients are reduced may differ, or the times say nothing about it",
            fix=("give all of them the same, such as SET=train.seed=0", TOLD),
            seen="\n".join(differences),
        )


def _place(it: ComparedRun) -> dict[str, Any]:
    run, lab = it.run, it.run["lab"]
    return {
        "lab": _lab(ClusterSpec.from_dict(lab["cluster"])),
        "backend": lab["backend"],
        "threads per rank": run["threads"]["per_rank"],
        "machine": run["host"]["cpu"],
        "cores": run["host"]["cores"],
        "torch": run["versions"]["torch"],
        "data, SHA-256": (it.ranks[0].header or {}).get("data", {}).get("sha256"),
        "model file, SHA-256": it.model_file_sha256,
    }


def _lab(spec: ClusterSpec) -> dict[str, Any]:
    """What was really asked for, however the file put it."""
    nodes = {
        name: spec.links_of(name).model_dump(mode="json", by_alias=True) for name in spec.node_names
    }
    return {"nodes": spec.nodes, "ranks per node": spec.ranks_per_node, **nodes}


def _differences(named: Named, may_differ: Sequence[str]) -> list[str]:
    (first, ours), *others = named
    found: dict[str, str] = {}
    for label, theirs in others:
        for key in {**ours, **theirs}:
            if not _allowed(key, may_differ) and ours.get(key) != theirs.get(key):
                said = f"{_text(ours.get(key))} in {first}, {_text(theirs.get(key))} in {label}"
                found.setdefault(key, f"{key}: {said}")
    return list(found.values())


def _allowed(key: str, may_differ: Sequence[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in may_differ)


def _flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
