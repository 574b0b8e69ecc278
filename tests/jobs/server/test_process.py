"""The exporter's process: real ones, beside labs that are stood in for by a sleeping process."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from cluster.holding import boot_id, start_ticks
from jobs.errors import LaunchError
from jobs.server import process as verbs
from jobs.server import serve
from jobs.server.process import address_of, end_unwanted, serving
from jobs.server.registry import FOLDER, Place, Process
from jobs.server.serve import PORTS, listen
from tests.jobs.run_folders import ended
from tests.jobs.server_labs import Labs, eventually, exporters

ROOT = Path(__file__).parents[3]


def bring_up(labs: Labs, runs: Path, name: str) -> str:
    """The address where the runs of a lab that has just come up are shown."""
    with serving(runs, name) as exporter:
        labs.up(name)
    address = exporter.address()
    assert address is not None, exporter.fault
    return address


def metrics(address: str) -> str:
    with urllib.request.urlopen(f"{address}metrics", timeout=20) as answer:
        text: str = answer.read().decode()
    return text


def test_from_the_first_lab_of_a_folder_to_its_last(
    tmp_path: Path, state: Path, labs: Labs
) -> None:
    first = bring_up(labs, tmp_path / "runs", "a")
    (pid,) = exporters(state)
    assert os.getsid(pid) == pid  # no terminal takes it along
    log = next((state / FOLDER).glob("*/log"))
    open_files = [Path(f"/proc/{pid}/fd/{number}").readlink() for number in (0, 1, 2)]
    assert open_files == [Path("/dev/null"), log, log]
    ended(tmp_path / "runs", "one")
    assert 'ddplab_run_info{algorithm="hierarchical",job="hier",run_id="one"}' in metrics(first)

    assert bring_up(labs, tmp_path / "runs", "ab") == first
    other = bring_up(labs, tmp_path / "other", "c")
    assert other != first
    assert len(exporters(state)) == 2
    assert [address_of(name) for name in ("a", "ab", "c", "d")] == [first, first, other, None]
    labs.down("c")
    labs.down("a")
    assert eventually(lambda: exporters(state) == [pid])
    assert 'run_id="one"' in metrics(first)
    labs.down("ab")
    assert eventually(lambda: exporters(state) == [])
    assert list(state.iterdir()) == []


def test_it_ends_by_itself_when_its_lab_is_killed(tmp_path: Path, state: Path, labs: Labs) -> None:
    bring_up(labs, tmp_path / "runs", "a")
    labs.kill("a")
    assert eventually(lambda: exporters(state) == [])
    assert eventually(lambda: not (state / FOLDER).exists())
    assert (state / "a" / "state.json").exists()  # for the command that asks for this lab


def test_it_ends_by_itself_when_its_state_is_swept_away(
    tmp_path: Path, state: Path, labs: Labs
) -> None:
    bring_up(labs, tmp_path / "runs", "a")
    (tmp_path / "state").rename(tmp_path / "elsewhere")
    assert eventually(lambda: exporters(state) == [])


def test_a_lab_that_does_not_come_up_leaves_no_exporter(tmp_path: Path, state: Path) -> None:
    with pytest.raises(ZeroDivisionError), serving(tmp_path / "runs", "a") as exporter:
        assert exporter.address() is not None
        raise ZeroDivisionError
    assert exporters(state) == []
    assert list(state.iterdir()) == []


def test_a_command_that_fails_ends_nobody_elses_exporter(
    tmp_path: Path, state: Path, labs: Labs
) -> None:
    address = bring_up(labs, tmp_path / "runs", "a")
    for name in ("a", "b"):
        with pytest.raises(KeyboardInterrupt), serving(tmp_path / "runs", name):
            raise KeyboardInterrupt
    assert len(exporters(state)) == 1
    assert address_of("a") == address


def test_it_ends_by_itself_when_the_command_that_makes_the_lab_is_killed(
    tmp_path: Path, state: Path
) -> None:
    code = (
        "import sys, time; from pathlib import Path; from jobs.server.process import serving\n"
        "with serving(Path(sys.argv[1]), 'a') as it: print(it.address(), flush=True); "
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "runs")]
    making = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert making.stdout is not None
        assert making.stdout.readline().startswith(b"http://127.0.0.1:")
        assert len(exporters(state)) == 1
    finally:
        making.kill()
        making.communicate()
    assert eventually(lambda: exporters(state) == [])
    assert eventually(lambda: list(state.iterdir()) == [])


def test_a_lab_that_is_up_is_kept_though_its_maker_was_killed(
    tmp_path: Path, state: Path, labs: Labs
) -> None:
    place = Place.of(state / FOLDER, tmp_path / "runs")
    code = (
        "import sys; from pathlib import Path; from jobs.server.registry import Place\n"
        "Place(Path(sys.argv[1])).register('a')\n"
    )
    subprocess.run([sys.executable, "-c", code, str(place.path)], cwd=ROOT, check=True)
    labs.up("a")
    labs.up("b")
    place.register("b")  # by this process, which lives
    assert place.labs() == {"a", "b"}
    assert {file.name for file in (place.path / "labs").iterdir()} == {"a", f"b.{os.getpid()}"}
    place.withdraw("b")


def test_an_exporter_that_cannot_be_started_leaves_nothing(
    tmp_path: Path, state: Path, labs: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "PROJECT", tmp_path / "gone")
    with serving(tmp_path / "runs", "a") as exporter:
        labs.up("a")
    assert str(tmp_path / "gone") in (exporter.fault or "")
    assert not (state / FOLDER).exists()


def test_killed_it_is_started_again_and_stopped_it_is_ended(
    tmp_path: Path, state: Path, labs: Labs
) -> None:
    bring_up(labs, tmp_path / "runs", "a")
    (pid,) = exporters(state)
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: address_of("a") is None)
    ended(tmp_path / "runs", "one")
    assert 'run_id="one"' in metrics(bring_up(labs, tmp_path / "runs", "b"))
    (again,) = exporters(state)
    assert again != pid
    os.kill(again, signal.SIGSTOP)
    labs.kill("a")
    labs.down("b")
    assert exporters(state) == []
    assert not (state / FOLDER).exists()


def test_only_what_is_known_to_be_ours_is_ended(tmp_path: Path, state: Path, labs: Labs) -> None:
    bystander = subprocess.Popen(["sleep", "300"])
    try:
        for ticks in (1, start_ticks(bystander.pid)):
            place = Place.of(state / FOLDER, tmp_path / "runs")
            place.register("gone")
            place.withdraw("gone")
            claim = {"pid": bystander.pid, "ticks": ticks, "boot": boot_id()}
            (place.path / "process.json").write_text(json.dumps(claim))
            end_unwanted()  # nobody holds the folder, so no process can be its exporter
            assert not place.path.exists()
            assert bystander.poll() is None
        bring_up(labs, tmp_path / "runs", "a")
        place = Place.of(state / FOLDER, tmp_path / "runs")
        claim = {"pid": bystander.pid, "ticks": 1, "boot": boot_id()}
        (place.path / "process.json").write_text(json.dumps(claim))
        labs.down("a")
        assert bystander.poll() is None
        assert eventually(lambda: exporters(state) == [])  # by itself
    finally:
        bystander.kill()
        bystander.wait()


def test_the_next_port_when_one_is_taken(tmp_path: Path, labs: Labs) -> None:
    taken = listen(PORTS)
    with taken:
        address = bring_up(labs, tmp_path / "runs", "a")
        port = int(address.rstrip("/").rpartition(":")[2])
        assert port in PORTS
        assert port != taken.getsockname()[1]


def test_no_port_at_all_is_told_with_the_rule() -> None:
    with listen(range(29440, 29640)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"no port of 127.0.0.1 is free from {port}"):
            listen(range(port, port + 1))
    with socket.socket() as everywhere:
        everywhere.bind(("0.0.0.0", 0))
        everywhere.listen()
        port = everywhere.getsockname()[1]
        with pytest.raises(LaunchError):
            listen(range(port, port + 1))


def test_without_its_packages_the_lab_comes_up_and_it_is_said(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "find_spec", lambda name: None if name == "uvicorn" else name)
    with serving(tmp_path / "runs", "a") as exporter:
        came_up = True
    assert came_up
    assert exporter.address() is None
    assert "uvicorn is not installed" in (exporter.fault or "")
    assert "make setup" in (exporter.fault or "")
    assert not (state / FOLDER).exists()


def test_what_it_said_last_is_told_when_it_does_not_start(
    tmp_path: Path, labs: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "MODULE", "jobs.no_such_module")
    with serving(tmp_path / "runs", "a") as exporter:
        labs.up("a")
    assert exporter.address() is None
    assert "no_such_module" in (exporter.fault or "")
    labs.down("a")


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("jobs.server.serve", ("torch", "numpy")),
        ("jobs.server.process", ("torch", "uvicorn", "starlette", "prometheus_client", "jinja2")),
    ],
)
def test_each_side_imports_only_what_it_needs(module: str, absent: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(absent) & set(done.stdout.split()) == set()


def test_an_exporter_whose_folder_is_gone_makes_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing() -> None:
        raise AssertionError("the state of labs may lie elsewhere by now")

    monkeypatch.setattr(serve, "changing", changing)
    place = Place(tmp_path / "place")
    place.path.mkdir()
    folder = os.open(place.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        place.remove()
        assert serve.is_unwanted(place, folder)
        place.path.mkdir(parents=True)  # of another exporter
        assert serve.is_unwanted(place, folder)
    finally:
        os.close(folder)


def test_a_process_is_known_by_more_than_its_number() -> None:
    me = Process.of(os.getpid())
    assert me.alive
    assert not Process(me.pid, me.ticks + 1, me.boot).alive
    assert not Process(me.pid, me.ticks, "another boot").alive
