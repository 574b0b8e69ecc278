"""The first program of a node's container: limits its links as the environment says, and waits.

`python -m cluster.compose.entry`, as the container's root. Ends with a JSON line that says what is
wrong where the links cannot be limited; nothing runs in a container whose links are not.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping
from ipaddress import IPv4Network
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from cluster.batch import run_batch
from cluster.compose.devices import (
    ADDRESSES,
    HELD,
    NOTE_HELD,
    OTHER_ROUTES,
    fabric_commands,
    fabric_nic,
    side_device,
)
from cluster.errors import ClusterError, UnitError
from cluster.nodes import Node
from cluster.shaping import Side, qdisc_commands, read_command, require_qdiscs, wanted_qdiscs
from cluster.spec import IntraSpec, LinkSpec, LinksSpec
from cluster.yamlfile import StrictModel

Model = TypeVar("Model", bound=StrictModel)


_INTER = {key: f"DDPLAB_{key.upper()}" for key in ("rate", "mtu", "delay", "jitter", "loss")}
_INTRA = {"rate": "DDPLAB_INTRA_RATE"}


def links_from(environ: Mapping[str, str]) -> LinksSpec:
    """The links that the environment asks for. Raises UnitError, naming what is wrong."""
    return LinksSpec(
        inter_node=_read(LinkSpec, _INTER, environ), intra_node=_read(IntraSpec, _INTRA, environ)
    )


def _read(model: type[Model], variables: Mapping[str, str], environ: Mapping[str, str]) -> Model:
    """A part of the links from the variables of its keys."""
    try:
        return model.model_validate_strings({key: environ[it] for key, it in variables.items()})
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        told = first.get("ctx", {}).get("error")
        unit = told if isinstance(told, UnitError) else UnitError(first["msg"])
        names = [variables[str(key)] for key in first["loc"]] or list(variables.values())
        settings = " ".join(f"{name}={environ[name]}" for name in names)
        raise UnitError(f"{settings}: {unit.message}", unit.rule, unit.fix) from exc


def limit(environ: Mapping[str, str]) -> None:
    """Limits this container's links, reads the limits back and notes them."""
    subnet, links = IPv4Network(environ["DDPLAB_SUBNET"]), links_from(environ)
    addresses, other_routes = run_batch(["sh"], [ADDRESSES, OTHER_ROUTES])
    nic, address = fabric_nic(addresses, subnet)
    node = Node("this node", 0, address, nic)
    wanted = wanted_qdiscs(links)
    devices = {side: side_device(node, side) for side in Side}
    commands = list(fabric_commands(node, links.inter_node.mtu, subnet, other_routes))
    for side in Side:
        commands += qdisc_commands(*devices[side], wanted[side])
    reads = [read_command(*devices[side]) for side in Side]
    answers = run_batch(["sh"], [*commands, *reads])[len(commands) :]
    for side, answer in zip(Side, answers, strict=True):
        require_qdiscs(f"{nic} {side.value}", wanted[side], json.loads(answer))
    Path(HELD).parent.mkdir(exist_ok=True)
    run_batch(["sh"], [NOTE_HELD])


def main() -> int:
    ending = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    try:
        limit(os.environ)
    except ClusterError as exc:
        told = {"message": exc.message, "seen": exc.seen, "rule": exc.rule, "fix": exc.fix}
        sys.stderr.write(json.dumps(told) + "\n")
        return 1
    except (KeyError, ValueError) as exc:
        words = " ".join(f"{type(exc).__name__}: {exc}".split())
        sys.stderr.write(json.dumps({"message": f"not understood: {words}"}) + "\n")
        return 1
    sys.stdout.write(f"limited to {os.environ['DDPLAB_RATE']}, out and in; read back\n")
    sys.stdout.flush()
    signal.sigwait(ending)
    return 0


if __name__ == "__main__":
    sys.exit(main())
