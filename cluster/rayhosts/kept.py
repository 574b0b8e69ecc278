"""What a lab's directory keeps of the Ray cluster inside of the lab; it goes with the lab."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from cluster.errors import NoRay
from cluster.kept import Lab
from cluster.state import DEFAULT_LAB, LabDirectory

RAY_FILE = "ray.json"


@dataclass(frozen=True)
class RayKept:
    """The address of the head, and on each node the process that its Ray lives below."""

    address: str
    nodes: Mapping[str, tuple[int, int]]
    """Node name -> process id as the node numbers it, and when it started, in ticks."""
    ray: str
    created_at: float
    lab_created_at: float
    """Of the lab it is in: another one of the same name has not got it."""


def read_cluster(lab: Lab) -> RayKept | None:
    """What `write_cluster` kept for this lab; None where it has no Ray cluster."""
    try:
        data = json.loads((LabDirectory.of(lab.name).path / RAY_FILE).read_text())
        nodes = {name: (int(pid), int(ticks)) for name, (pid, ticks) in data["nodes"].items()}
        kept = RayKept(**{**data, "nodes": nodes})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return kept if kept.lab_created_at == lab.created_at else None


def write_cluster(lab: Lab, kept: RayKept) -> None:
    """Replaces it in one step. Call it with the lab's lock held."""
    path = LabDirectory.of(lab.name).path / RAY_FILE
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(asdict(kept)))
    aside.replace(path)


def forget_cluster(lab: Lab) -> None:
    (LabDirectory.of(lab.name).path / RAY_FILE).unlink(missing_ok=True)


def require_cluster(lab: Lab) -> RayKept:
    """Raises NoRay where the lab has none."""
    kept = read_cluster(lab)
    if kept is None:
        raise NoRay(
            f'there is no Ray cluster in lab "{lab.name}"',
            "BACKEND=ray runs on the lab's own Ray, or on the one whose address is given",
            (make_word("ray-up", lab.name), "ADDRESS=10.0.0.4:6379"),
        )
    return kept


def make_word(word: str, lab_name: str) -> str:
    """`make ray-up LAB=name`."""
    return f"make {word}" + ("" if lab_name == DEFAULT_LAB else f" LAB={lab_name}")
