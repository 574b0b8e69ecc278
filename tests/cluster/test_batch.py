"""Commands run in one go: what each wrote, the first that fails, and who hears Ctrl-C."""

import os

import pytest

from cluster.batch import _SEPARATOR, batch_error, run_batch
from cluster.errors import CommandFailed


def test_each_command_has_its_own_answer() -> None:
    assert run_batch(["sh"], [["echo", "a b"], ["true"], ["echo", "$HOME; x"]]) == (
        "a b\n",
        "",
        "$HOME; x\n",
    )


def test_the_first_that_fails_is_named_and_the_next_does_not_run() -> None:
    with pytest.raises(CommandFailed, match="cat /nowhere") as caught:
        run_batch(["sh"], [["true"], ["cat", "/nowhere"], ["touch", "/nowhere/made"]])
    assert caught.value.seen is not None and "No such file" in caught.value.seen


def test_ctrl_c_is_not_for_them() -> None:
    """A terminal sends it to every process of its own; a batch that dies of it hides the cause."""
    (session,) = run_batch(["sh"], [["cut", "-d ", "-f6", "/proc/self/stat"]])
    assert int(session) != os.getsid(0)


def test_a_device_that_the_kernel_lacks_is_named_with_its_module() -> None:
    command = ["ip", "link", "add", "ifb0", "type", "ifb"]
    told = batch_error([["true"], command], f"Error: Unknown device type.\n{_SEPARATOR}1")
    assert told.message == "this kernel cannot do: ip link add ifb0 type ifb"
    assert told.fix[0].startswith("sudo modprobe ifb ")
