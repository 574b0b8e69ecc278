"""What a step's communication looked like on one rank; CLOCK_MONOTONIC nanoseconds."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class BucketTiming:
    """One bucket: when it was ready to go, and when its reduction started and ended.

    Ready: its last gradient is there; without overlap also, backward has ended.
    """

    index: int
    bytes: int
    ready_ns: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Traffic:
    """Payload bytes this rank sent. None where the backend does not tell (native)."""

    intra_node_bytes: int | None
    inter_node_bytes: int | None


def sum_of(one: Traffic, other: Traffic) -> Traffic:
    """Both together: not known where either is not."""

    def add(a: int | None, b: int | None) -> int | None:
        return None if a is None or b is None else a + b

    return Traffic(
        add(one.intra_node_bytes, other.intra_node_bytes),
        add(one.inter_node_bytes, other.inter_node_bytes),
    )


@dataclass
class StepCommunication:
    """All that one rank saw of a step's communication.

    `exposed` are the intervals in which this rank did nothing but wait for peers.
    `gradients_ready_ns` is when backward had computed the last gradient (None without backward).
    """

    buckets: list[BucketTiming] = field(default_factory=list)
    exposed: list[tuple[int, int]] = field(default_factory=list)
    traffic: Traffic = field(default_factory=lambda: Traffic(0, 0))
    gradients_ready_ns: int | None = None
