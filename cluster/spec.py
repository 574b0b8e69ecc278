"""ClusterSpec: what a lab should be, as data. Reads files and the catalog; realises nothing."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from cluster.errors import ClusterError, UnitError
from cluster.units import (
    UNLIMITED,
    format_duration,
    format_memory,
    format_rate,
    format_share,
    parse_duration,
    parse_memory,
    parse_optional_rate,
    parse_share,
)
from cluster.yamlfile import StrictModel, load_yaml, nearest, validate

Rate = Annotated[int | None, BeforeValidator(parse_optional_rate), PlainSerializer(format_rate)]
Duration = Annotated[float, BeforeValidator(parse_duration), PlainSerializer(format_duration)]
Memory = Annotated[int, BeforeValidator(parse_memory), PlainSerializer(format_memory)]
Share = Annotated[float, BeforeValidator(parse_share), PlainSerializer(format_share)]

ALL = "all"
"""Stands for every node where links are changed."""
CATALOG = Path(__file__).parent / "catalog"
LOOPBACK_MTU = 65536
ETHERNET_BYTES = 14
TCP_HEADER_BYTES = 52
"""IP and TCP headers of a packet, with the timestamps that Linux uses by default."""


class LinkOverride(StrictModel):
    """Some keys of a node's fabric NIC; everything holds in each direction."""

    rate_bits_per_s: Rate = Field(default=None, alias="rate")
    """How much the NIC carries, out and in: `200mbit`, `25MB/s` or `unlimited`."""
    mtu: int = Field(default=1500, ge=576, le=65535)
    """Bytes of the largest IP packet."""
    delay_s: Duration = Field(default=0.0, alias="delay")
    """Added to every packet that leaves the node: `10ms`. Needs sch_netem in the kernel."""
    jitter_s: Duration = Field(default=0.0, alias="jitter")
    """How much the delay varies around its value; at most the delay."""
    loss_ratio: Share = Field(default=0.0, alias="loss")
    """Share of the packets leaving the node that are lost: `0.1%`. Needs sch_netem."""


class LinkSpec(LinkOverride):
    """One node's fabric NIC; everything holds in each direction."""

    rate_bits_per_s: Rate = Field(alias="rate")
    """How much the NIC carries, out and in: `200mbit`, `25MB/s` or `unlimited`."""

    @model_validator(mode="after")
    def _jitter_needs_delay(self) -> Self:
        if self.jitter_s > self.delay_s:
            raise UnitError(
                f"jitter {format_duration(self.jitter_s)} is more than the delay "
                f"{format_duration(self.delay_s)}",
                "a delay varies around its value and cannot become negative",
                "write a delay of at least the jitter",
            )
        return self

    @property
    def needs_netem(self) -> bool:
        return bool(self.delay_s or self.loss_ratio)


class IntraSpec(StrictModel):
    """The inside of a node."""

    rate_bits_per_s: Rate = Field(default=None, alias="rate")
    """`unlimited`, or what all traffic between ranks of one node shares (loopback is shaped)."""


class LinksSpec(StrictModel):
    """The links of one node."""

    inter_node: LinkSpec
    """The node's NIC on the fabric."""
    intra_node: IntraSpec = IntraSpec()
    """Traffic that does not leave the node."""


class OverrideSpec(StrictModel):
    """What is different on one node; a key that is not given keeps the general value."""

    inter_node: LinkOverride = LinkOverride()
    """The node's own NIC."""
    intra_node: IntraSpec = IntraSpec()
    """The node's own inside."""

    @model_validator(mode="before")
    @classmethod
    def _limits_are_equal(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "limits" in data:
            raise UnitError(
                "a node has no limits of its own",
                "nodes are containers of one service, which Compose makes all alike",
                "write limits beside nodes, for every node",
                below=("limits",),
            )
        return data


class LimitsSpec(StrictModel):
    """What the programs of one node may use; equal for all nodes. Needs nodes that are containers.

    What is not given is not limited.
    """

    cpus: float | None = Field(default=None, ge=0.1, le=1024)
    """Processors' worth of time: `1.5`."""
    memory_bytes: Memory | None = Field(default=None, alias="memory")
    """Memory: `2GB`, `512MiB`."""

    def describe(self) -> str:
        """`1.5 cpus and 2GB`; empty where nothing is limited."""
        words = [] if self.cpus is None else [f"{self.cpus:g} cpus"]
        words += [] if self.memory_bytes is None else [format_memory(self.memory_bytes)]
        return " and ".join(words)


class ClusterSpec(StrictModel):
    """Nodes of equal size and the links between and inside them."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")
    """What screens call this cluster."""
    nodes: int = Field(ge=1, le=256)
    """How many nodes; they are called node0, node1, ..."""
    ranks_per_node: int = Field(ge=1, le=256)
    """Training processes on each node."""
    links: LinksSpec
    """The links of every node."""
    limits: LimitsSpec = LimitsSpec()
    """What the programs of each node may use."""
    overrides: dict[str, OverrideSpec] = Field(default={})
    """Nodes that differ, by name."""

    @model_validator(mode="after")
    def _overrides_are_right(self) -> Self:
        names = self.node_names
        for name in self.overrides:
            if name not in names:
                raise _no_node(name, names, below=("overrides", name))
            self.links_of(name)
        return self

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"node{k}" for k in range(self.nodes))

    def links_of(self, node_name: str) -> LinksSpec:
        """The links of one node, its overrides applied."""
        override = self.overrides.get(node_name)
        if override is None:
            return self.links
        return LinksSpec(
            inter_node=LinkSpec.model_validate(_merged(self.links.inter_node, override.inter_node)),
            intra_node=IntraSpec.model_validate(
                _merged(self.links.intra_node, override.intra_node)
            ),
        )

    @property
    def limits_insides(self) -> bool:
        """Whether the inside of any node has a rate."""
        links = (self.links_of(name) for name in self.node_names)
        return any(each.intra_node.rate_bits_per_s is not None for each in links)

    def resolved(self) -> tuple[int, int, LimitsSpec, tuple[LinksSpec, ...]]:
        """What is really asked for: two specifications that resolve equally are the same lab."""
        links = tuple(self.links_of(name) for name in self.node_names)
        return self.nodes, self.ranks_per_node, self.limits, links

    def with_rates(self, node: str, rates: Mapping[str, str]) -> Self:
        """The same cluster with other rates on one node, or on `all` of them.

        `rates` holds a rate for `inter_node`, `intra_node` or both. What is set for all nodes ends
        what single nodes had of their own. Raises UnitError, for an unknown node too.
        """
        if node != ALL and node not in self.node_names:
            raise _no_node(node, self.node_names)
        data = self.to_dict()
        own = data.setdefault("overrides", {})
        for link, text in rates.items():
            rate = format_rate(parse_optional_rate(text))
            general = data["links"].setdefault(link, {})
            for name in self.node_names if node == ALL else (node,):
                own.get(name, {}).get(link, {}).pop("rate", None)
            if node == ALL:
                general["rate"] = rate
            elif rate != general.get("rate", UNLIMITED):
                own.setdefault(node, {}).setdefault(link, {})["rate"] = rate
        data["overrides"] = {name: kept for name in own if (kept := _not_empty(own[name]))}
        return self.from_dict(data)

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the keys and units of a file; `from_dict` reads it back."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        return cls.model_validate(data)

    def describe(self) -> str:
        """One line: `2x2: 2 nodes x 2 ranks, 200mbit`, and what else is not usual."""
        link = self.links.inter_node
        parts = [f"{self.nodes} nodes x {self.ranks_per_node} ranks"]
        parts.append(format_rate(link.rate_bits_per_s))
        parts += [f"mtu {link.mtu}"] if link.mtu != 1500 else []
        parts += [f"delay {format_duration(link.delay_s)}"] if link.delay_s else []
        parts += [f"loss {format_share(link.loss_ratio)}"] if link.loss_ratio else []
        intra = self.links.intra_node.rate_bits_per_s
        parts += [f"inside a node {format_rate(intra)}"] if intra else []
        parts += [f"{words} a node"] if (words := self.limits.describe()) else []
        parts += [f"{name} {self._differs(name)}" for name in self.overrides]
        return f"{self.name}: " + ", ".join(parts)

    def _differs(self, node: str) -> str:
        """What is different on a node: `50mbit inside 1gbit`."""
        usual, own = self.links, self.links_of(node)
        rate, intra = own.inter_node.rate_bits_per_s, own.intra_node.rate_bits_per_s
        words = [format_rate(rate)] if rate != usual.inter_node.rate_bits_per_s else []
        if intra != usual.intra_node.rate_bits_per_s:
            words.append(f"inside {format_rate(intra)}")
        return " ".join(words) or "differs"


def _no_node(name: str, names: Sequence[str], below: tuple[str, ...] = ()) -> UnitError:
    few = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    hint = nearest(name, names) if len(names) <= 8 else None
    return UnitError(f"there is no node {name!r}", f"this cluster has {few}", hint, below=below)


def _not_empty(own: Mapping[str, Any]) -> dict[str, Any]:
    return {link: keys for link, keys in own.items() if keys}


def _merged(general: StrictModel, own: StrictModel) -> dict[str, Any]:
    return {
        **general.model_dump(by_alias=True),
        **own.model_dump(by_alias=True, exclude_unset=True),
    }


def payload_ceiling(rate_bits_per_s: int | None, mtu: int) -> float | None:
    """TCP payload in bytes/s that a link of this rate can carry; None when unlimited."""
    if rate_bits_per_s is None:
        return None
    return rate_bits_per_s / 8 * (mtu - TCP_HEADER_BYTES) / (mtu + ETHERNET_BYTES)


def catalog_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in CATALOG.glob("*.yaml")))


def load_cluster(name_or_path: str, rate_override: str | None = None) -> ClusterSpec:
    """A cluster of the catalog, or of a file (a text with `/` or ending in .yaml or .yml).

    `rate_override` replaces links.inter_node.rate; overrides of single nodes stay as they are.
    Raises SpecError, or ClusterError for a name that is not in the catalog.
    """
    if re.search(r"/|\.ya?ml$", name_or_path):
        path = Path(name_or_path).expanduser()
    elif name_or_path in catalog_names():
        path = CATALOG / f"{name_or_path}.yaml"
    else:
        raise ClusterError(
            f"there is no cluster {name_or_path!r}",
            "a cluster is a name of the catalog, or a file ending in .yaml",
            nearest(name_or_path, catalog_names()),
        )
    document = load_yaml(path)
    if rate_override is not None:
        document = document.assign_text("links.inter_node.rate", rate_override, "RATE")
    return validate(ClusterSpec, document)
