"""Which rank this process is, from the variables of whoever started it. Pure.

torchrun: RANK, WORLD_SIZE; LOCAL_RANK, LOCAL_WORLD_SIZE; GROUP_RANK, GROUP_WORLD_SIZE: the node, of
  how many; MASTER_ADDR, MASTER_PORT. By hand: the same; those of node and place may be left out.
srun: SLURM_PROCID, SLURM_STEP_NUM_TASKS (else SLURM_NTASKS); SLURM_LOCALID and the node's place in
  SLURM_STEP_TASKS_PER_NODE; SLURM_NODEID, SLURM_STEP_NUM_NODES (else SLURM_NNODES); MASTER_* where
  given, else the first of SLURM_STEP_NODELIST and a port made of SLURM_JOB_ID and SLURM_STEP_ID.
mpirun of Open MPI: OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE; MASTER_* must be given
  (mpirun -x); nobody says which node: ranks of one kernel and network are one.

torchrun's come first: where SLURM starts torchrun, both are there.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from jobs.errors import LaunchError

FIRST_PORT, NUM_PORTS, STEPS_A_JOB = 15_000, 17_000, 16
"""Ports for SLURM's jobs: below those that kernels give to whoever asks for any."""


@dataclass(frozen=True)
class Seat:
    """One rank as it was started. None: whoever started it does not say."""

    source: str
    """torchrun, SLURM, Open MPI, or `by hand`."""
    rank: int
    world_size: int
    local_rank: int | None
    local_world_size: int | None
    node: int | None
    nnodes: int | None
    master_addr: str
    master_port: int
    store_prefix: str | None
    """Where torchrun's own agent keeps the store: what keys of this start begin with."""


def seat(environment: Mapping[str, str]) -> Seat:
    """Raises LaunchError for variables that are missing, are no numbers, or do not add up."""
    for known in (_torchrun, _slurm, _open_mpi):
        found = known(environment)
        if found is not None:
            _check(found)
            return found
    raise LaunchError(
        "none of RANK, SLURM_PROCID and OMPI_COMM_WORLD_RANK is set",
        rule="whoever starts the ranks says which one each is",
        fix=(
            "torchrun --nnodes=2 --nproc-per-node=2 ... -m jobs.worker --job hier --out runs/first",
            "on one machine: make run JOB=hier",
        ),
    )


def _torchrun(environment: Mapping[str, str]) -> Seat | None:
    if "RANK" not in environment:
        return None
    of = _Numbers(environment)
    elastic = "TORCHELASTIC_RUN_ID" in environment
    agents_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    attempt = of.optional("TORCHELASTIC_RESTART_COUNT") or 0
    return Seat(
        source="torchrun" if elastic else "by hand",
        rank=of.number("RANK"),
        world_size=of.number("WORLD_SIZE"),
        local_rank=of.optional("LOCAL_RANK"),
        local_world_size=of.optional("LOCAL_WORLD_SIZE"),
        node=of.optional("GROUP_RANK"),
        nnodes=of.optional("GROUP_WORLD_SIZE"),
        master_addr=_address(environment),
        master_port=_port(environment),
        store_prefix=f"/worker/attempt_{attempt}" if agents_store else None,
    )


def _slurm(environment: Mapping[str, str]) -> Seat | None:
    if "SLURM_PROCID" not in environment:
        return None
    of = _Numbers(environment)
    node = of.number("SLURM_NODEID")
    given = "MASTER_ADDR" in environment
    return Seat(
        source="SLURM",
        rank=of.number("SLURM_PROCID"),
        world_size=of.first("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        local_rank=of.number("SLURM_LOCALID"),
        local_world_size=_tasks_on(environment, node),
        node=node,
        nnodes=of.first("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
        master_addr=_address(environment) if given else first_host(_node_list(environment)),
        master_port=_port(environment) if "MASTER_PORT" in environment else _port_of(of),
        store_prefix=None,
    )


def _open_mpi(environment: Mapping[str, str]) -> Seat | None:
    if "OMPI_COMM_WORLD_RANK" not in environment:
        return None
    of = _Numbers(environment)
    return Seat(
        source="Open MPI",
        rank=of.number("OMPI_COMM_WORLD_RANK"),
        world_size=of.number("OMPI_COMM_WORLD_SIZE"),
        local_rank=of.number("OMPI_COMM_WORLD_LOCAL_RANK"),
        local_world_size=of.number("OMPI_COMM_WORLD_LOCAL_SIZE"),
        node=None,
        nnodes=None,
        master_addr=_address(environment),
        master_port=_port(environment),
        store_prefix=None,
    )


@dataclass(frozen=True)
class _Numbers:
    environment: Mapping[str, str]

    def number(self, name: str) -> int:
        text = self.environment.get(name)
        if text is None:
            raise LaunchError(
                f"{name} is not set",
                rule="whoever starts the ranks says how many there are and which one each is",
                fix=f"start all ranks in one way, or set {name}",
            )
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise LaunchError(
                f"{name}={text!r}", rule="a number, without blanks", fix=f"export {name}=0, say"
            )
        return int(text)

    def optional(self, name: str) -> int | None:
        return self.number(name) if name in self.environment else None

    def first(self, *names: str) -> int:
        return self.number(next((name for name in names if name in self.environment), names[0]))


def _address(environment: Mapping[str, str]) -> str:
    address = environment.get("MASTER_ADDR")
    if address is None:
        raise LaunchError(
            "MASTER_ADDR is not set",
            rule="all ranks meet at rank 0's address on the fabric",
            fix="export MASTER_ADDR and MASTER_PORT to all ranks; mpirun -x MASTER_ADDR=...",
        )
    if not re.fullmatch(r"[0-9A-Za-z._:%-]+", address):
        raise LaunchError(
            f"MASTER_ADDR={address!r}",
            rule="an address or a host name, without blanks",
            fix=f"export MASTER_ADDR={''.join(address.split()) or '10.0.0.1'}",
        )
    return address


def _port(environment: Mapping[str, str]) -> int:
    text = environment.get("MASTER_PORT", "")
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 65_536:
        raise LaunchError(
            f"MASTER_PORT={text!r}" if text else "MASTER_PORT is not set",
            rule="a port of rank 0's machine, 1 to 65535, the same on all ranks",
            fix="export MASTER_PORT=29500",
        )
    return int(text)


def _port_of(of: _Numbers) -> int:
    """The same on all ranks, and another one for most other jobs and steps on the machine."""
    job, step = of.number("SLURM_JOB_ID"), of.optional("SLURM_STEP_ID") or 0
    return FIRST_PORT + (job * STEPS_A_JOB + step) % NUM_PORTS


def _node_list(environment: Mapping[str, str]) -> str:
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    listed = next((environment[name] for name in names if environment.get(name)), None)
    if listed is None:
        raise LaunchError(
            "neither MASTER_ADDR nor SLURM_STEP_NODELIST is set",
            rule="all ranks meet at rank 0's address",
            fix="export MASTER_ADDR=the first node's address on the fabric",
        )
    return listed


def first_host(node_list: str) -> str:
    """`gpu07` of `gpu[07-09,12],cpu1`, as SLURM writes lists of nodes."""
    match = re.match(r"([^\[,\s]+)(?:\[([0-9]+)[^\]]*\]([^,\s]*))?", node_list)
    if match is None:
        raise LaunchError(
            f"SLURM's list of nodes is {node_list!r}",
            rule="it begins with rank 0's node",
            fix="export MASTER_ADDR=that node's address on the fabric",
        )
    prefix, number, suffix = match.groups(default="")
    return f"{prefix}{number}{suffix}"


def tasks_per_node(text: str) -> list[int]:
    """[2, 2, 2, 1] of `2(x3),1`, as SLURM writes it."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part)
        if match is None:
            raise LaunchError(
                f"SLURM_STEP_TASKS_PER_NODE={text!r}",
                rule="SLURM writes it as 2(x3),1",
                fix="start the ranks with srun",
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _tasks_on(environment: Mapping[str, str], node: int) -> int | None:
    text = environment.get("SLURM_STEP_TASKS_PER_NODE")
    if text is None:
        return None
    counts = tasks_per_node(text)
    return counts[node] if node < len(counts) else None


def _check(it: Seat) -> None:
    """What can be told from one rank's variables alone, before it waits for any other."""
    rules = [
        (it.world_size < 1, f"{it.world_size} ranks", "there is one rank or more"),
        (it.rank >= it.world_size, f"rank {it.rank} of {it.world_size}", _from_0(it.world_size)),
    ]
    if it.local_world_size is not None:
        seen = f"{it.local_world_size} ranks in this node, {it.world_size} in all"
        rules.append((not 0 < it.local_world_size <= it.world_size, seen, "a node has a part"))
        if it.local_rank is not None:
            seen = f"local rank {it.local_rank} of {it.local_world_size}"
            outside = it.local_rank >= it.local_world_size
            rules.append((outside, seen, _from_0(it.local_world_size)))
    if it.nnodes is not None:
        seen = f"{it.nnodes} nodes and {it.world_size} ranks"
        rules.append((not 0 < it.nnodes <= it.world_size, seen, "a node has one rank or more"))
        if it.node is not None:
            seen = f"node {it.node} of {it.nnodes}"
            rules.append((it.node >= it.nnodes, seen, _from_0(it.nnodes)))
    for wrong, seen, rule in rules:
        if wrong:
            raise LaunchError(
                f"{it.source} says: {seen}",
                rule=rule,
                fix="start all ranks in one way, and leave its variables as they are",
            )


def _from_0(count: int) -> str:
    return f"they count from 0 to {count - 1}"
