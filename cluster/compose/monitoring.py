"""Prometheus and Grafana beside the nodes: their network, their ports here, and their images.

What they are, says `docker-compose.yml`; what they show, `images/prometheus` and `images/grafana`.
"""

import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from ipaddress import IPv4Interface, IPv4Network

from cluster.compose.engine import Engine, docker_command
from cluster.compose.file import COMPOSE_FILE, DEFAULT_PROJECT, Management, compose_command
from cluster.compose.project import MONITORING
from cluster.compose.subnets import candidates, holder_of
from cluster.errors import ClusterError, HostError
from cluster.nodes import Monitoring
from cluster.topology import BENCHMARK_RANGE

NETWORK = "management"
NETWORK_LABEL = "com.docker.compose.network"
SERVICES = {"grafana": "3000/tcp", "prometheus": "9090/tcp"}
"""Each service, and the port of its container that is shown on this machine."""
FIRST_PORT = {"grafana": 3000, "prometheus": 9090}
PORTS_TRIED = 100
HERE = "127.0.0.1"
PULL_TIMEOUT_S = 900.0


def choose_management(
    taken: Mapping[IPv4Network, str], fabric: IPv4Network, environ: Mapping[str, str]
) -> Management:
    """A network and ports that nobody has. Raises HostError where there are none.

    The last free part of the range, as fabrics take the first ones. Ports that the environment
    names are taken as they are.
    """
    ports = {
        service: environ.get(port_variable(service)) or str(_free_port(FIRST_PORT[service]))
        for service in SERVICES
    }
    taken = {**taken, fabric: "the fabric"}
    for subnet in reversed(list(candidates())):
        if holder_of(subnet, taken) is None:
            return Management(subnet, ports)
    raise HostError(
        f"no part of {BENCHMARK_RANGE} is free",
        "Prometheus and Grafana have a network of their own",
        "leave MONITORING out",
    )


def port_variable(service: str) -> str:
    return f"DDPLAB_{service.upper()}_PORT"


def _free_port(first: int) -> int:
    for port in range(first, first + PORTS_TRIED):
        with socket.socket() as some:
            some.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                some.bind((HERE, port))
                return port
            except OSError:
                continue
    raise HostError(f"no port of {HERE} is free from {first} to {first + PORTS_TRIED - 1}")


def find_monitoring(engine: Engine, project: str) -> Monitoring | None:
    """Where a project is watched; None where its nodes are alone."""
    networks = [
        network
        for network in engine.networks(project)
        if (network.get("Labels") or {}).get(NETWORK_LABEL) == NETWORK
    ]
    if not networks:
        return None
    (config,) = networks[0]["IPAM"]["Config"]
    subnet = IPv4Network(config["Subnet"])
    gateway = config.get("Gateway", subnet[1])
    return Monitoring(IPv4Interface(f"{gateway}/{subnet.prefixlen}"), dict(_pages(engine, project)))


def _pages(engine: Engine, project: str) -> Iterator[tuple[str, str]]:
    for service, port in SERVICES.items():
        for container in engine.containers(project, service):
            for shown in container["NetworkSettings"]["Ports"].get(port) or ():
                yield service, f"http://{shown['HostIp']}:{shown['HostPort']}/"


def fetch_images(engine: Engine, timed: Callable[[], AbstractContextManager[None]]) -> None:
    """Pulls what is not here, inside of `timed()`. Raises HostError where it cannot be had."""
    missing = [image for image in _images(engine) if not engine.has_image(image)]
    if not missing:
        return
    with timed():
        for image in missing:
            done = _docker(engine, ["pull", "--quiet", image], PULL_TIMEOUT_S)
            if done.returncode:
                raise HostError(
                    f"the image {image} cannot be had",
                    "MONITORING=1 runs Prometheus and Grafana, from their own images",
                    (
                        "without MONITORING the lab needs neither",
                        "DDPLAB_PROMETHEUS_IMAGE and DDPLAB_GRAFANA_IMAGE name others, also of "
                        "another registry",
                    ),
                    seen=done.stderr.strip()[-300:],
                )


def _images(engine: Engine) -> list[str]:
    """As the file names them, in this environment."""
    command = compose_command("docker", DEFAULT_PROJECT, [COMPOSE_FILE], [MONITORING])
    done = _docker(engine, [*command[1:], "config", "--images", *SERVICES], 30.0)
    if done.returncode:
        raise ClusterError("docker-compose.yml is not understood", seen=done.stderr.strip()[-300:])
    return sorted(done.stdout.split())


def _docker(
    engine: Engine, words: list[str], timeout_s: float
) -> "subprocess.CompletedProcess[str]":
    command = [docker_command(), *words]
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=engine.environment,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise HostError(
            f"docker {words[0]} did not end within {timeout_s:g} s", fix="docker info"
        ) from exc
