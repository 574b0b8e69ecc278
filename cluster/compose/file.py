"""What `docker-compose.yml` is filled in with, and the command that brings it up: pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from shlex import quote

import yaml

from cluster.spec import ClusterSpec
from cluster.state import DEFAULT_LAB
from cluster.units import format_duration, format_rate, format_share

PROJECT = Path(__file__).resolve().parents[2]
COMPOSE_FILE = PROJECT / "docker-compose.yml"
DEFAULT_PROJECT = "ddplab"
SERVICE = "node"
NETWORK = "fabric"
_SYSTEM = ("bin", "dev", "etc", "lib", "proc", "run", "sbin", "sys", "tmp", "usr", "var")
OWN_FOLDERS = tuple(Path("/", name) for name in (*_SYSTEM, "home/ddplab", "opt/ddplab"))
"""What a container has of its own, and does not work without."""
BY_HAND = "by hand"
"""What the file says instead of a lab's directory where nobody filled it in."""


@dataclass(frozen=True)
class Management:
    """The network that Prometheus and Grafana are on, and the ports that show them here."""

    subnet: IPv4Network
    ports: Mapping[str, str]
    """By service."""

    def environment(self) -> dict[str, str]:
        return {
            "DDPLAB_MANAGEMENT_SUBNET": str(self.subnet),
            "DDPLAB_MANAGEMENT_GATEWAY": str(self.subnet[1]),
            **{f"DDPLAB_{service.upper()}_PORT": port for service, port in self.ports.items()},
        }


@dataclass(frozen=True)
class Filling:
    """What one lab puts into the file. `home` is the lab's own directory, by which it is known."""

    spec: ClusterSpec
    home: Path
    image: str
    subnet: IPv4Network
    runs: Path
    work: Path
    """The folder that commands are typed in; nodes see it, and the project, under the same path."""
    management: Management | None = None
    """None: no Prometheus and no Grafana."""

    def environment(self) -> dict[str, str]:
        """The variables that the file reads; every node gets what holds for nodes in general."""
        nic, inside = self.spec.links.inter_node, self.spec.links.intra_node
        limits = self.spec.limits
        mtus = [self.spec.links_of(name).inter_node.mtu for name in self.spec.node_names]
        return {
            "DDPLAB_IMAGE": self.image,
            "DDPLAB_RATE": format_rate(nic.rate_bits_per_s),
            "DDPLAB_MTU": str(max(mtus)),
            "DDPLAB_DELAY": format_duration(nic.delay_s),
            "DDPLAB_JITTER": format_duration(nic.jitter_s),
            "DDPLAB_LOSS": format_share(nic.loss_ratio),
            "DDPLAB_INTRA_RATE": format_rate(inside.rate_bits_per_s),
            "DDPLAB_CPUS": str(limits.cpus or 0),
            "DDPLAB_MEMORY": str(limits.memory_bytes or 0),
            "DDPLAB_SUBNET": str(self.subnet),
            "DDPLAB_PROJECT": str(PROJECT),
            "DDPLAB_RUNS": str(self.runs),
            "DDPLAB_HOME": str(self.home),
            **(self.management.environment() if self.management else {}),
        }

    def overlay(self) -> str | None:
        """A further file where nodes must see a folder that is not in the project.

        None also for a folder such as /tmp or /, which would hide what containers have there.
        """
        hides = any(own.is_relative_to(self.work) for own in OWN_FOLDERS)
        if hides or self.work.is_relative_to(PROJECT) or self.runs == self.work:
            return None
        path = str(self.work).replace("$", "$$")  # Compose would read it as a variable
        seen = {"type": "bind", "source": path, "target": path}
        volumes = [{**seen, "read_only": True}]
        return yaml.safe_dump({"services": {SERVICE: {"volumes": volumes}}})


def project_name(lab: str) -> str:
    """The Compose project of a lab: that of the file itself for the lab without a name."""
    return DEFAULT_PROJECT if lab == DEFAULT_LAB else f"{DEFAULT_PROJECT}-{lab}"


def compose_command(
    docker: str, project: str, files: Sequence[Path], profiles: Sequence[str] = ()
) -> list[str]:
    """How Compose is called for a project; nothing is read from files that lie about."""
    command = [docker, "compose", "--project-name", project]
    command += ["--project-directory", str(PROJECT), "--env-file", "/dev/null"]
    for file in files:
        command += ["--file", str(file)]
    for profile in profiles:
        command += ["--profile", profile]
    return command


def up_words(num_nodes: int) -> list[str]:
    """The words behind `compose_command` that bring the nodes up."""
    return ["up", "--detach", "--no-build", "--no-color", "--scale", f"{SERVICE}={num_nodes}"]


def shown(environment: Mapping[str, str], command: Sequence[str]) -> str:
    """A command with its variables, as it is typed."""
    settings = [f"{name}={quote(value)}" for name, value in environment.items()]
    return " ".join([*settings, *(quote(word) for word in command)])
