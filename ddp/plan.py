"""ReductionPlan: everything that fixes the order of float sums, as one frozen, hashed object.

Owns how parameters are packed into buckets and what a plan looks like as JSON. Does not agree on
a plan between ranks (parallel) nor carry it out (executor, replay).
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any, get_args, get_origin

from ddp.algorithms import AUTO, find_algorithm
from ddp.errors import PlanError
from ddp.fabric import Fabric
from ddp.schedule import Schedule

MIB = 2**20
SEGMENT_BYTES = 512 * 1024

Parameter = tuple[str, int, str, int]  # name, numel, dtype name, itemsize in bytes
Bucket = tuple[str, tuple[str, ...], tuple[int, ...]]  # dtype name, parameter names, numels


@dataclass(frozen=True)
class BucketLayout:
    """One bucket: parameters of one dtype end to end, then `status_numel` elements of status.

    The status travels in the same buffer, so it shifts the chunk bounds and belongs to the plan.
    `segments` is how many parts of the buffer go through the schedule by themselves. `algorithm`
    is what reduces it: a plan fills in its own, unless that is `auto`.
    """

    dtype: str
    parameters: tuple[str, ...]
    numels: tuple[int, ...]
    segments: int
    status_numel: int = 0
    algorithm: str = ""

    def __post_init__(self) -> None:
        if len(self.parameters) != len(self.numels):
            raise PlanError(f"{len(self.parameters)} parameters with {len(self.numels)} sizes")
        if self.segments < 1 or self.status_numel < 0 or min(self.numels, default=0) < 0:
            raise PlanError(f"{self}: at least one segment, and no size below 0")

    @property
    def numel(self) -> int:
        """Elements of the buffer that is reduced."""
        return sum(self.numels) + self.status_numel


@dataclass(frozen=True)
class ReductionPlan:
    """Equal plans give equal bytes (same machine type, thread count and dtype).

    `algorithm` is what was asked for; each bucket names what it goes through, which is the same but
    where `auto` was asked for. Raises PlanError for a bucket that `auto` has chosen nothing for.
    """

    algorithm: str
    ring_order: str
    ring_seed: int
    node_of: tuple[int, ...]
    buckets: tuple[BucketLayout, ...]

    def __post_init__(self) -> None:
        if self.algorithm != AUTO:
            own = tuple(replace(bucket, algorithm=self.algorithm) for bucket in self.buckets)
            object.__setattr__(self, "buckets", own)
        for index, bucket in enumerate(self.buckets):
            if bucket.algorithm in ("", AUTO):
                raise PlanError(f"bucket {index}: auto must choose an algorithm for each bucket")

    @property
    def algorithms(self) -> tuple[str, ...]:
        """What the buckets go through, each name once."""
        chosen = self.algorithm == AUTO
        return (
            tuple(dict.fromkeys(b.algorithm for b in self.buckets)) if chosen else (self.algorithm,)
        )

    def schedule(self, algorithm: str | None = None) -> Schedule | None:
        """The schedule of one of `algorithms`, else of the plan's own; None where that has none."""
        build = find_algorithm(self.algorithm if algorithm is None else algorithm).build
        return build and build(Fabric(self.node_of), self.ring_order, self.ring_seed)

    def to_json(self) -> dict[str, object]:
        """The plan as a JSON document (plain dicts and lists)."""
        document: dict[str, object] = json.loads(json.dumps(asdict(self)))
        return document

    @classmethod
    def from_json(cls, document: object) -> "ReductionPlan":
        """The plan that `to_json` wrote. Raises PlanError at a wrong, missing or unknown key."""
        plan: ReductionPlan = _decode(cls, document, "plan")
        assert isinstance(document, Mapping)
        for index, (layout, written) in enumerate(
            zip(plan.buckets, document["buckets"], strict=True)
        ):
            named = written.get("algorithm", layout.algorithm)
            if named != layout.algorithm:
                raise PlanError(f"plan.buckets[{index}]: {named!r} in a plan of {plan.algorithm!r}")
        return plan

    @property
    def sha256(self) -> str:
        """Hash of the plan's canonical JSON, in hexadecimal."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def make_buckets(
    parameters: Sequence[Parameter],
    bucket_cap_mb: float,
    first_bucket_mb: float,
    per_parameter: bool,
) -> tuple[Bucket, ...]:
    """Pack parameters, given in registration order, into buckets as torch's DDP does.

    Parameters are taken in reverse, the order in which backward completes them; a bucket closes
    when it has reached its cap in MiB (the first of each dtype: the smaller of the two caps), so
    it may exceed the cap but never splits a parameter nor mixes dtypes. Buckets are ordered by
    their last parameter: one that is complete earlier never waits behind one that is not.
    """
    cap = _cap_bytes("bucket_cap_mb", bucket_cap_mb)
    first_cap = min(cap, _cap_bytes("first_bucket_mb", first_bucket_mb))
    closed: list[list[Parameter]] = []
    filling: dict[str, list[Parameter]] = {}
    started: set[str] = set()
    position = {name: index for index, (name, *_) in enumerate(reversed(parameters))}
    if len(position) != len(parameters):
        raise PlanError("two parameters have the same name; a plan tells them apart by name")
    for parameter in reversed(parameters):
        dtype = parameter[2]
        bucket = filling.setdefault(dtype, [])
        bucket.append(parameter)
        limit = cap if dtype in started else first_cap
        if per_parameter or _num_bytes(bucket) >= limit:
            closed.append(filling.pop(dtype))
            started.add(dtype)
    buckets = sorted([*closed, *filling.values()], key=lambda bucket: position[bucket[-1][0]])
    return tuple(_summary(bucket) for bucket in buckets)


def choose_segments(algorithm: str, num_bytes: int, num_nodes: int) -> int:
    """How many segments a bucket of `num_bytes` is cut into when `segments` is "auto".

    About 512 KiB each: smaller ones cost more in messages than they hide. At most as many as the
    algorithm can use (a ring's NICs are busy in every stage, so its segments hide latency only),
    and one on a single node, where there is no wire to hide anything behind.
    """
    most = find_algorithm(algorithm).max_segments if num_nodes > 1 else 1
    return max(1, min(most, num_bytes // SEGMENT_BYTES))


def _cap_bytes(name: str, cap_mb: float) -> float:
    if not (math.isfinite(cap_mb) and cap_mb >= 0):
        raise PlanError(f"{name} {cap_mb}: a size in MiB, 0 or more (0: one parameter a bucket)")
    return cap_mb * MIB


def _num_bytes(bucket: Sequence[Parameter]) -> int:
    return sum(numel * itemsize for _, numel, _, itemsize in bucket)


def _summary(bucket: Sequence[Parameter]) -> Bucket:
    names = tuple(name for name, *_ in bucket)
    numels = tuple(numel for _, numel, *_ in bucket)
    return bucket[0][2], names, numels


def _decode(kind: Any, value: object, where: str) -> Any:
    """`value` as `kind`: a dataclass, a tuple of one kind, str or int, and nothing near it."""
    if is_dataclass(kind):
        known = {field.name: field.type for field in fields(kind)}
        if kind is BucketLayout and isinstance(value, Mapping):
            value = {"algorithm": "", **value}  # plans from before `auto` do not name it
        if not isinstance(value, Mapping) or set(value) != set(known):
            seen = sorted(value) if isinstance(value, Mapping) else value
            raise PlanError(f"{where}: {seen!r}, where exactly the keys {sorted(known)} belong")
        items = {name: _decode(known[name], value[name], f"{where}.{name}") for name in known}
        return kind(**items)  # type: ignore[operator]
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise PlanError(f"{where}: {value!r}, where a list belongs")
        item = get_args(kind)[0]
        return tuple(_decode(item, each, f"{where}[{i}]") for i, each in enumerate(value))
    if type(value) is not kind:  # so that true is no 1
        raise PlanError(f"{where}: {value!r}, where {kind.__name__} belongs")
    return value
