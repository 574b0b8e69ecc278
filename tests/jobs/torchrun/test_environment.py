"""Who this rank is, by torchrun, SLURM and Open MPI; what cannot be is refused."""

import pytest

from jobs.errors import LaunchError
from jobs.torchrun.environment import Seat, first_host, seat, tasks_per_node

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.5.4",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "7",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "16",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "8",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "gpu[07-09,12]",
    "SLURM_JOB_ID": "40112",
    "SLURM_STEP_ID": "3",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "MASTER_ADDR": "node-a.fabric",
    "MASTER_PORT": "23456",
}


def test_torchrun() -> None:
    expected = Seat("torchrun", 5, 8, 1, 4, 1, 2, "10.0.5.4", 29500, "/worker/attempt_2")
    assert seat(TORCHRUN) == expected
    assert seat({**SLURM, **TORCHRUN}) == expected, "torchrun's come first"
    own_store = {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False"}
    assert seat(own_store).store_prefix is None


def test_by_hand() -> None:
    four = {key: TORCHRUN[key] for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    assert seat(four) == Seat("by hand", 5, 8, None, None, None, None, "10.0.5.4", 29500, None)


def test_slurm_step_before_job() -> None:
    port = 15_000 + (40112 * 16 + 3) % 17_000
    assert seat(SLURM) == Seat("SLURM", 3, 7, 1, 2, 1, 4, "gpu07", port, None)
    last = {**SLURM, "SLURM_NODEID": "3", "SLURM_LOCALID": "0", "SLURM_PROCID": "6"}
    assert seat(last).local_world_size == 1
    assert seat(last).master_port == port, "the same for all ranks"
    given = {**SLURM, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}
    assert (seat(given).master_addr, seat(given).master_port) == ("10.0.0.1", 1234)
    plain = {key: value for key, value in SLURM.items() if "STEP" not in key}
    plain |= {"SLURM_JOB_NODELIST": "a1,a2"}
    it = seat(plain)
    assert (it.world_size, it.nnodes, it.local_world_size) == (16, 8, None)
    assert it.master_addr == "a1"


def test_slurm_steps_of_a_job_have_ports_of_their_own() -> None:
    ports = [seat({**SLURM, "SLURM_STEP_ID": str(step)}).master_port for step in range(16)]
    assert len(set(ports)) == 16
    ephemeral = 32_768
    jobs = [seat({**SLURM, "SLURM_JOB_ID": str(job)}).master_port for job in range(1, 9_999, 37)]
    assert all(1024 < port < ephemeral for port in [*ports, *jobs])


def test_open_mpi() -> None:
    expected = Seat("Open MPI", 2, 4, 0, 2, None, None, "node-a.fabric", 23456, None)
    assert seat(OPEN_MPI) == expected


@pytest.mark.parametrize(
    ("listed", "first"),
    [
        ("gpu07", "gpu07"),
        ("gpu07,gpu09", "gpu07"),
        ("gpu[07-09,12],cpu1", "gpu07"),
        ("r[3,5]-ib,x", "r3-ib"),
    ],
)
def test_the_first_of_slurms_nodes(listed: str, first: str) -> None:
    assert first_host(listed) == first


def test_slurms_tasks_per_node() -> None:
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    assert tasks_per_node("4") == [4]
    with pytest.raises(LaunchError, match="SLURM_STEP_TASKS_PER_NODE='2x3'"):
        tasks_per_node("2x3")


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "none of RANK, SLURM_PROCID and OMPI_COMM_WORLD_RANK is set"),
        ({**TORCHRUN, "MASTER_ADDR": " 10.0.5.4"}, r"MASTER_ADDR=' 10\.0\.5\.4'.*=10\.0\.5\.4"),
        ({**TORCHRUN, "MASTER_ADDR": ""}, "MASTER_ADDR=''"),
        ({**TORCHRUN, "MASTER_PORT": "29500 "}, "MASTER_PORT='29500 '"),
        ({**TORCHRUN, "MASTER_PORT": "70000"}, "MASTER_PORT='70000'"),
        ({**TORCHRUN, "WORLD_SIZE": "4"}, "rank 5 of 4"),
        ({**TORCHRUN, "WORLD_SIZE": "0", "RANK": "0"}, "0 ranks"),
        ({**TORCHRUN, "RANK": "-1"}, "RANK='-1'"),
        ({**TORCHRUN, "RANK": " 1"}, "RANK=' 1'"),
        ({**TORCHRUN, "LOCAL_RANK": "4"}, "local rank 4 of 4"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "9"}, "9 ranks in this node, 8 in all"),
        ({**TORCHRUN, "GROUP_WORLD_SIZE": "9"}, "9 nodes and 8 ranks"),
        ({**TORCHRUN, "GROUP_RANK": "2"}, "node 2 of 2"),
        ({key: TORCHRUN[key] for key in ("RANK", "WORLD_SIZE")}, "MASTER_ADDR is not set"),
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "3"}, "SLURM says: rank 3 of 3"),
        ({**SLURM, "SLURM_STEP_NODELIST": ""}, "neither MASTER_ADDR nor SLURM_STEP_NODELIST"),
        ({key: v for key, v in OPEN_MPI.items() if "MASTER" not in key}, "MASTER_ADDR.*mpirun -x"),
    ],
)
def test_what_does_not_add_up_is_refused_before_any_wait(
    environment: dict[str, str], words: str
) -> None:
    with pytest.raises(LaunchError, match=words) as refused:
        seat(environment)
    assert refused.value.rule and refused.value.fix
