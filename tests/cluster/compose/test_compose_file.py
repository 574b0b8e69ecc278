"""docker-compose.yml and its overlay: Compose takes them, and nothing gets more than it needs.

`docker compose config` reads files only: no engine is asked, and nothing is made.
"""

import json
import os
import re
import shutil
import subprocess
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from cluster.compose.file import COMPOSE_FILE, PROJECT, Filling
from cluster.spec import load_cluster

GPU = PROJECT / "images/compose-gpu.yml"
FILES = (COMPOSE_FILE, GPU)
VARIANTS = {
    "alone": [],
    "monitoring": ["--profile", "monitoring"],
    "gpu": ["--file", str(GPU)],
    "all": ["--file", str(GPU), "--profile", "monitoring"],
}


def compose(*words: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    """`docker compose` as it is typed in the checkout, with these settings and no others."""
    if shutil.which("docker") is None:
        pytest.skip("there is no docker command")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DDPLAB_")}
    command = ["docker", "compose", "--file", str(COMPOSE_FILE), *words]
    environment = {**kept, "PWD": str(PROJECT), **settings}
    return subprocess.run(
        command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False
    )


def resolved(*words: str, **settings: str) -> dict[str, Any]:
    """What Compose makes of the files."""
    done = compose(*words, "config", "--format", "json", **settings)
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr.lower(), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def text_of(file: Path) -> str:
    """A file without its comments."""
    return re.sub(r"(?m)(^| )#.*$", "", file.read_text())


def variables(file: Path) -> set[str]:
    """Names of all settings that a file reads."""
    return set(re.findall(r"\$\{(\w+)", text_of(file)))


@pytest.fixture(params=VARIANTS)
def project(request: pytest.FixtureRequest) -> dict[str, Any]:
    return resolved(*VARIANTS[request.param])


@pytest.mark.docker
def test_no_part_has_rights_it_does_not_need(project: dict[str, Any]) -> None:
    for name, service in project["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service.get("cap_add", []) == (["NET_ADMIN"] if name == "node" else []), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"] is True, name
        shared = {"privileged", "pid", "ipc", "uts", "network_mode", "devices", "cgroup_parent"}
        assert not shared & {key for key, value in service.items() if value}, name


@pytest.mark.docker
def test_no_part_can_write_to_this_machine_but_to_runs(project: dict[str, Any]) -> None:
    mounts = [
        (name, mount)
        for name, service in project["services"].items()
        for mount in service.get("volumes", [])
        if mount["type"] != "volume"
    ]
    assert {mount["type"] for _, mount in mounts} == {"bind"}
    written = [(name, it["source"]) for name, it in mounts if not it.get("read_only")]
    assert written == [("node", str(PROJECT / "runs"))]
    assert not [it for _, it in mounts if not Path(it["source"]).is_relative_to(PROJECT)]


@pytest.mark.docker
def test_nodes_see_the_project_and_runs_under_their_own_paths(project: dict[str, Any]) -> None:
    node = project["services"]["node"]
    assert [(it["source"], it["target"]) for it in node["volumes"]] == [
        (str(PROJECT), str(PROJECT)),
        (str(PROJECT / "runs"), str(PROJECT / "runs")),
    ]
    assert node["working_dir"] == node["environment"]["PYTHONPATH"] == str(PROJECT)


@pytest.mark.docker
def test_nodes_are_on_the_fabric_alone_and_it_leads_nowhere(project: dict[str, Any]) -> None:
    node, fabric = project["services"]["node"], project["networks"]["fabric"]
    assert set(node["networks"]) == {"fabric"}
    assert "ports" not in node
    assert fabric["internal"] is True
    assert fabric["driver_opts"]["com.docker.network.bridge.inhibit_ipv4"] == "true"
    others = {name: it for name, it in project["services"].items() if name != "node"}
    assert not [name for name, service in others.items() if "fabric" in service["networks"]]


@pytest.mark.docker
def test_what_limits_memory_leaves_no_swap(project: dict[str, Any]) -> None:
    for name, service in project["services"].items():
        assert service.get("memswap_limit") == service.get("mem_limit"), name


@pytest.mark.docker
def test_ports_are_open_to_this_machine_alone(project: dict[str, Any]) -> None:
    for name, service in project["services"].items():
        for port in service.get("ports", []):
            assert port["host_ip"] == "127.0.0.1", name


@pytest.mark.docker
def test_monitoring_comes_only_where_it_is_asked_for() -> None:
    assert set(resolved()["services"]) == {"node"}
    assert set(resolved(*VARIANTS["monitoring"])["services"]) == {"node", "prometheus", "grafana"}


@pytest.mark.docker
@pytest.mark.parametrize(("asked", "count"), [({}, -1), ({"DDPLAB_GPUS": "2"}, 2)])
def test_the_overlay_adds_gpus_and_nothing_else(asked: dict[str, str], count: int) -> None:
    plain = resolved()["services"]["node"]
    node = resolved(*VARIANTS["gpu"], **asked)["services"]["node"]
    devices = node.pop("deploy")["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "count": count, "capabilities": ["gpu"]}]
    plain.pop("deploy", None)
    assert node == plain


@pytest.mark.docker
def test_what_is_set_reaches_the_nodes() -> None:
    node = resolved(
        DDPLAB_RATE="1gbit",
        DDPLAB_MTU="9000",
        DDPLAB_CPUS="1.5",
        DDPLAB_MEMORY="2gb",
        DDPLAB_SUBNET="10.99.0.0/24",
        DDPLAB_RUNS="/data/runs",
    )
    service, fabric = node["services"]["node"], node["networks"]["fabric"]
    assert service["environment"]["DDPLAB_RATE"] == "1gbit"
    assert service["environment"]["DDPLAB_SUBNET"] == "10.99.0.0/24"
    assert fabric["ipam"]["config"] == [{"subnet": "10.99.0.0/24"}]
    assert fabric["driver_opts"]["com.docker.network.driver.mtu"] == "9000"
    assert (float(service["cpus"]), int(service["mem_limit"])) == (1.5, 2 * 1024**3)
    assert service["memswap_limit"] == service["mem_limit"]  # no swap on top of it
    assert service["volumes"][1]["source"] == service["volumes"][1]["target"] == "/data/runs"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_setting_has_a_value_where_it_is_not_set(file: Path) -> None:
    text = text_of(file)
    assert variables(file)
    assert re.findall(r"\$\{\w+", text) == [it[:-2] for it in re.findall(r"\$\{\w+:-", text)]
    assert not re.search(r"\$\w", text)
    assert "docker.sock" not in text


def test_the_file_reads_what_the_command_fills_in_and_the_document_names_it_all() -> None:
    filling = Filling(
        load_cluster("2x2"), Path("/h"), "image", IPv4Network("10.9.0.0/24"), Path("/r"), Path("/w")
    )
    read = {it for file in FILES for it in variables(file)} - {"PWD", "USER"}
    assert set(filling.environment()) <= read
    document = (PROJECT / "docs/compose-by-hand.md").read_text()
    assert set(re.findall(r"DDPLAB_\w+", document)) == read
