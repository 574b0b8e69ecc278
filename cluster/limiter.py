"""Limits the sides of nodes and reads the limits back; how a node runs commands is a backend's."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.nodes import Node
from cluster.shaping import (
    Side,
    held_rate,
    qdisc_commands,
    read_command,
    require_qdiscs,
    wanted_qdiscs,
)
from cluster.spec import LinksSpec

Commands = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Limiter:
    """What `cluster.nodes.Shapeable` says of shape, shape_plan and limits, for one backend.

    `run(node, commands)`: what each command writes, run where the node's devices are.
    `device(node, side)`: how tc is called there, and the device that stands for the side.
    `noting`: what is run behind commands that have changed a limit.
    """

    run: Callable[[Node, Commands], tuple[str, ...]]
    device: Callable[[Node, Side], tuple[list[str], str]]
    noting: Commands = ()

    def shape(self, node: Node, links: LinksSpec) -> None:
        """Limits a node's links and reads the limits back. Raises ShapingError."""
        commands, wanted = self._commands(node, links), wanted_qdiscs(links)
        noting = self.noting if commands else ()
        answers = self.run(node, [*commands, *self._reads(node), *noting])[len(commands) :]
        for side, answer in zip(Side, answers, strict=False):
            require_qdiscs(f"{node.name} {side.value}", wanted[side], json.loads(answer))

    def plan(self, node: Node, links: LinksSpec) -> tuple[str, ...]:
        """The exact commands with which `shape` would change the node's links now."""
        return tuple(shlex.join(command) for command in self._commands(node, links))

    def limits(self, node: Node) -> Mapping[str, int | None]:
        """Bits per second that each side is limited to, read back; None: not limited."""
        return {side.value: held_rate(held) for side, held in self._held(node).items()}

    def _commands(self, node: Node, links: LinksSpec) -> Commands:
        wanted = wanted_qdiscs(links)
        return [
            command
            for side, held in self._held(node).items()
            for command in qdisc_commands(*self.device(node, side), wanted[side], held)
        ]

    def _held(self, node: Node) -> Mapping[Side, Any]:
        """What the devices of a node hold now, as tc reads it back."""
        answers = self.run(node, self._reads(node))
        return {side: json.loads(answer) for side, answer in zip(Side, answers, strict=True)}

    def _reads(self, node: Node) -> list[list[str]]:
        return [read_command(*self.device(node, side)) for side in Side]
