"""A taken port is named with what holds it; real sockets, on ports that nobody else asks for."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from cluster.doctor.checks import OK, WARNING
from cluster.doctor.ports import holder_of, port_check

HOME = "127.0.0.1"


@pytest.fixture
def ports() -> Iterator[tuple[ExitStack, list[int]]]:
    """Three free ports, and a stack for sockets that hold some of them."""
    with ExitStack() as stack:
        sockets = [socket.create_server((HOME, 0)) for _ in range(3)]
        found = sorted(each.getsockname()[1] for each in sockets)
        for each in sockets:
            each.close()
        yield stack, found


def hold(stack: ExitStack, port: int, address: str = HOME) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    both = family is socket.AF_INET6
    stack.enter_context(socket.create_server((address, port), family=family, dualstack_ipv6=both))


def test_a_free_port_is_ok(ports: tuple[ExitStack, list[int]]) -> None:
    _, numbers = ports
    check = port_check(HOME, numbers, "the exporter", "jobs.server")
    assert (check.state, check.seen) == (OK, f"{HOME}:{numbers[0]} is free for the exporter")
    assert holder_of(HOME, numbers[0]) is None


@pytest.mark.parametrize("address", [HOME, "0.0.0.0", "::"])
def test_the_holder_of_a_taken_port_is_named(
    ports: tuple[ExitStack, list[int]], address: str
) -> None:
    stack, numbers = ports
    hold(stack, numbers[0], address)
    check = port_check(HOME, numbers, "the exporter", "no such program")
    assert check.state == WARNING
    assert f"{HOME}:{numbers[0]} is taken by " in check.seen
    assert f"(process {os.getpid()} of " in check.seen
    assert f"the exporter takes {numbers[1]}" in check.seen
    assert check.fix == (f"kill {os.getpid()}     ends it",)


def test_our_own_program_holds_it_rightly(ports: tuple[ExitStack, list[int]]) -> None:
    stack, numbers = ports
    hold(stack, numbers[0])
    holder = holder_of(HOME, numbers[0])
    assert holder is not None and holder.pid == os.getpid()
    own = holder.command.split()[0]
    check = port_check(HOME, numbers, "the exporter", own)
    assert check.state == OK
    assert f"process {os.getpid()}" in check.seen


def test_no_port_left(ports: tuple[ExitStack, list[int]]) -> None:
    stack, numbers = ports
    for number in numbers:
        hold(stack, number)
    check = port_check(HOME, numbers, "the exporter", "no such program")
    assert check.state == WARNING
    assert f"and so are all others to {numbers[-1]}" in check.seen


def test_a_listener_elsewhere_is_in_nobodys_way(ports: tuple[ExitStack, list[int]]) -> None:
    stack, numbers = ports
    hold(stack, numbers[0], "127.0.0.2")
    assert port_check(HOME, numbers, "the exporter", "x").state == OK


def test_an_address_that_is_not_there_is_told() -> None:
    check = port_check("192.0.2.1", range(9440, 9442), "the exporter", "x")
    assert check.state == WARNING
    assert "192.0.2.1:9440 cannot be used: Cannot assign requested address" in check.seen
