"""Runs a list of commands inside a lab in one go, and turns their faults into errors of ours."""

import shlex
import subprocess
from collections.abc import Sequence

from cluster.errors import ClusterError, CommandFailed, HostError, MissingQdisc
from cluster.holding import refusal, search_path

TIMEOUT_S = 30.0
_SEPARATOR = "\x1e"


def run_batch(shell: Sequence[str], commands: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """What each command wrote. `shell` starts a shell in the lab that reads its input.

    Raises at the first command that fails: MissingQdisc, HostError or CommandFailed.
    """
    script = "".join(
        f"{shlex.join(command)} </dev/null || {{ echo '{_SEPARATOR}{number}' >&2; exit 1; }}\n"
        f"echo '{_SEPARATOR}'\n"
        for number, command in enumerate(commands)
    )
    try:
        result = subprocess.run(
            shell,
            input=script,
            capture_output=True,
            text=True,
            env={"LC_ALL": "C", "PATH": search_path()},
            timeout=TIMEOUT_S,
            check=False,
            start_new_session=True,  # Ctrl-C is for the command, which then ends in order
        )
    except subprocess.TimeoutExpired as exc:
        raise CommandFailed(f"commands in the lab did not end within {TIMEOUT_S:g} s") from exc
    if result.returncode:
        raise batch_error(commands, result.stderr)
    return tuple(result.stdout.split(f"{_SEPARATOR}\n")[:-1])


def batch_error(commands: Sequence[Sequence[str]], stderr: str) -> ClusterError:
    """The error for what a batch wrote to its standard error as it stopped."""
    text, _, number = stderr.strip().rpartition(_SEPARATOR)
    if not number.isdigit():
        return CommandFailed("the lab cannot be entered", seen=stderr.strip())
    command, seen = commands[int(number)], " ".join(text.split())
    if "qdisc" in command and ("kind is unknown" in seen or "Unknown qdisc" in seen):
        return missing_qdisc("netem" if "netem" in command else "tbf")
    if "Operation not permitted" in seen:
        return refusal(f"{shlex.join(command[:3])}: {seen}")
    if "Unknown device type" in seen or "Operation not supported" in seen:
        kind = _device_kind(command)
        fix = f"sudo modprobe {kind}     (Debian, Ubuntu: in linux-modules-extra)" if kind else None
        return HostError(f"this kernel cannot do: {shlex.join(command)}", fix=fix, seen=seen)
    return CommandFailed(f"a command in the lab failed: {shlex.join(command)}", seen=seen)


def _device_kind(command: Sequence[str]) -> str | None:
    """The kind of device that `ip link add` is to make."""
    words = list(command)
    return words[words.index("type") + 1] if "type" in words[:-1] else None


def missing_qdisc(kind: str) -> MissingQdisc:
    """The error for a kernel without a queueing discipline."""
    what, verb = {"netem": ("delay, jitter and loss", "need"), "tbf": ("a rate", "needs")}[kind]
    return MissingQdisc(
        f"this kernel lacks sch_{kind}, which {what} {verb}",
        "what cannot be applied is refused; a lab is never reported as limited when it is not",
        (
            f"sudo modprobe sch_{kind}     (Debian, Ubuntu: in linux-modules-extra)",
            f"take {what} out of the cluster's file",
        ),
    )
