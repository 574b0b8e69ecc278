"""A holder is known by process id and start time; nothing else is ever signalled or entered."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cluster import holding
from cluster.errors import HostError, MissingTool
from cluster.holding import Holder, boot_id, start_holder, start_ticks, tool
from cluster.packages import install_commands


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def holder_of(process: "subprocess.Popen[bytes]") -> Holder:
    ticks = start_ticks(process.pid)
    assert ticks is not None
    return Holder(process.pid, ticks, process.pid, ticks, boot_id(), user_namespace=True)


def test_a_running_one_is_alive_and_can_be_ended(sleeper: "subprocess.Popen[bytes]") -> None:
    holder = holder_of(sleeper)
    assert holder.alive
    holder.end()
    assert not holder.alive
    assert sleeper.wait(10) == -9
    holder.end()


@pytest.mark.parametrize("change", [{"pid_ticks": 1, "parent_ticks": 1}, {"boot": "another"}])
def test_a_process_id_used_again_is_not_trusted(
    sleeper: "subprocess.Popen[bytes]", change: dict[str, int]
) -> None:
    holder = replace(holder_of(sleeper), **change)  # type: ignore[arg-type]
    assert not holder.alive
    holder.end()
    assert sleeper.poll() is None


def test_what_has_ended_but_was_not_waited_for_is_not_alive(
    sleeper: "subprocess.Popen[bytes]",
) -> None:
    holder = holder_of(sleeper)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not holder.alive


def test_names_with_blanks_and_brackets_do_not_confuse(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "600"]) as process:
        assert start_ticks(process.pid) == holder_of(process).pid_ticks > 1
        process.kill()


def test_survives_being_kept(sleeper: "subprocess.Popen[bytes]") -> None:
    holder = holder_of(sleeper)
    assert Holder.from_json(holder.to_json()) == holder


@pytest.mark.parametrize("own", [True, False])
def test_enters_a_user_namespace_only_where_there_is_one(
    sleeper: "subprocess.Popen[bytes]", own: bool
) -> None:
    command = replace(holder_of(sleeper), user_namespace=own).enter(["id"])
    assert command[0].endswith("nsenter")
    assert ("-U" in command) == ("--preserve-credentials" in command) == own
    assert command[-1] == "id"


def test_a_missing_command_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "search_path", lambda: "/nowhere")
    with pytest.raises(MissingTool) as caught:
        tool("tc")
    assert caught.value.fix == install_commands(["tc"])
    assert "iproute" in caught.value.fix[0]


def test_commands_are_found_where_only_root_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert Path(tool("tc")).is_absolute()


def test_sudo_elevates_only_the_unshare(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user becomes itself again before anything of ours runs, keeping one right."""
    monkeypatch.setattr(holding, "tool", lambda name: name)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getegid", lambda: 1001)
    assert " ".join(holding.elevation()) == (
        "sudo setpriv --reuid 1000 --regid 1001 --init-groups "
        "--inh-caps +sys_admin --ambient-caps +sys_admin"
    )
    assert holding.unshare_command()[:3] == ["unshare", "--user", "--map-root-user"]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An unshare that this machine refuses."""
    script = tmp_path / "unshare"
    script.write_text(
        "#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def test_a_refused_holder_says_what_was_seen(failing: Path) -> None:
    with pytest.raises(HostError) as caught:
        start_holder(failing, "none")
    assert caught.value.seen is not None
    assert "unshare failed: Operation not permitted" in caught.value.seen
    assert not (failing / "ready").exists()


def test_a_long_path_is_no_obstacle(failing: Path) -> None:
    """A socket's path may have 107 bytes; a lab's folder any number."""
    deep = failing / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    with pytest.raises(HostError, match="private network"):
        start_holder(deep, "none")
