"""run.json: what was run, on what, with which versions. Gathered before the first rank starts."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from cluster.site import Site
from cluster.spec import ClusterSpec
from jobs.rankplan import RankPlan

SCHEMA = 1
AGREED = ("plan", "plan_sha256", "data", "model_file", "algorithm_file", "hook_file")
DEVICE = ("device", "device_reason", "gpu", "determinism")
PROJECT = Path(__file__).resolve().parent.parent


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def cores_for(spec: ClusterSpec) -> int:
    """Cores for all ranks of a lab together."""
    return shared_cores(num_cores(), spec.limits.cpus, spec.nodes)


def shared_cores(cores: int, cpus_a_node: float | None, num_nodes: int) -> int:
    """What is left of a machine's cores where nodes are limited; at least 1."""
    return cores if cpus_a_node is None else max(1, min(cores, int(cpus_a_node * num_nodes)))


def shared_by_ranks(site: Site) -> int:
    """Cores for all ranks together, where they run; at least 1."""
    if site.underlay is not None:
        return cores_for(site.spec)
    facts = [site.nodes.facts(node) for node in site.nodes.list()]
    return max(1, sum({each.boot_id: each.cores for each in facts}.values()))  # by machine


def describe_run(run_id: str, site: Site, plan: RankPlan, created_at: datetime) -> dict[str, Any]:
    """run.json as it is before the ranks have agreed on a plan, and told what they train on."""
    return {
        "schema": SCHEMA,
        "run_id": run_id,
        "created_at": created_at.isoformat(timespec="milliseconds"),
        "job": plan.job.model_dump(mode="json"),
        "lab": lab_json(site),
        "nnodes": len(plan.nodes),
        "nproc_per_node": plan.nproc_per_node,
        "world_size": len(plan.node_of),
        "node_of": list(plan.node_of),
        "threads": {
            "per_rank": plan.threads.per_rank,
            "set_by_user": plan.threads.set_by_user,
        },
        "probe": site.probe.to_json() if site.probe else None,
        "link_changes": [],
        "plan": None,
        "plan_sha256": None,
        "data": None,
        "model_file": None,
        "algorithm_file": None,
        "hook_file": None,
        "devices": None,
        "versions": versions(),
        "git": git_state(),
        "host": host_facts(),
        "cores": shared_by_ranks(site),
        "nodes": None,
    }


def told_by_ranks(
    run: Mapping[str, Any], headers: Sequence[Mapping[str, Any] | None], spec: ClusterSpec
) -> dict[str, Any]:
    """Keys of run.json that ranks know when they are ready to train: what they agreed on, what they
    compute on, and what their links carry where nobody measured them before."""
    first = headers[0] or {}
    on = [{key: (header or {}).get(key) for key in DEVICE} for header in headers]
    return {
        **{key: first.get(key) for key in AGREED},
        "devices": on,
        "probe": run["probe"] or measured_by_ranks(first, spec),
    }


def measured_by_ranks(header: Mapping[str, Any], spec: ClusterSpec) -> dict[str, Any] | None:
    """What ranks measured themselves, beside what limits their links; None where they did not."""
    probe = header.get("probe")
    if probe is None:
        return None

    def limit(link: Mapping[str, Any]) -> int | None:
        if link["mode"] == "intra_node":
            return spec.links_of(link["src"]).intra_node.rate_bits_per_s
        ends = [spec.links_of(link[end]).inter_node.rate_bits_per_s for end in ("src", "dst")]
        return min((rate for rate in ends if rate is not None), default=None)

    links = [{**link, "configured_bits_per_second": limit(link)} for link in probe["links"]]
    return {**probe, "links": links}


def lab_json(site: Site) -> dict[str, Any]:
    """Where it is, as every document has it."""
    return {
        "name": site.name,
        "backend": site.backend,
        "underlay": site.underlay.backend if site.underlay else None,
        "created_at": site.created_at,
        "cluster": site.spec.to_dict(),
        "nodes": [
            {
                "name": node.name,
                "index": node.index,
                "address": node.address,
                "interface": node.interface,
                "rate_bits_per_s": site.spec.links_of(node.name).inter_node.rate_bits_per_s,
                "intra_rate_bits_per_s": site.spec.links_of(node.name).intra_node.rate_bits_per_s,
            }
            for node in site.nodes.list()
        ],
    }


def versions() -> dict[str, str | None]:
    return {
        "ddplab": _version("ddplab"),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "kernel": platform.release(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)  # without importing it
    except metadata.PackageNotFoundError:
        return None


def git_state() -> dict[str, Any] | None:
    """The commit this code is from, and whether files differ from it; None outside of git."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "changed": bool(_git("status", "--porcelain"))}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(PROJECT), *arguments],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def host_facts() -> dict[str, Any]:
    return {
        "machine": platform.machine(),
        "cpu": _first_value(Path("/proc/cpuinfo"), "model name"),
        "cores": num_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
    }


def _first_value(path: Path, key: str) -> str | None:
    try:
        lines: Mapping[str, str] = dict(
            (part.strip() for part in line.split(":", 1))  # type: ignore[misc]
            for line in reversed(path.read_text().splitlines())
            if ":" in line
        )
    except OSError:
        return None
    return lines.get(key)
