"""What is timed: sizes, algorithms, placements, rounds. Plain data, also for ranks; no torch.

Owns the refusals that need no lab, and those that need its shape and memory only.
"""

import json
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Literal, NamedTuple, get_args

from cluster.nodes import NodeFacts
from cluster.yamlfile import StrictModel
from ddp.algorithms import ALGORITHMS, find_algorithm
from ddp.errors import UsageError
from ddp.fabric import Fabric
from ddp.fixed import in_a_row
from ddp.importpath import is_import_path
from jobs.argument import RankArgument
from jobs.bench.sizes import size_words
from jobs.errors import BenchError
from jobs.owncode import look_for, reduces, require_algorithm, short
from jobs.spec import JobSpec, load_job, node_of

Placement = Literal["contiguous", "interleaved"]
RingOrder = Literal["contiguous", "interleaved", "shuffled"]
PLACEMENTS, RING_ORDERS = get_args(Placement), get_args(RingOrder)
ROUNDS, WARMUP_ROUNDS = 10, 2
DEFAULT_ALGORITHMS = ("native", "ring", "hierarchical")
BASE = "native"
MEMORY_SHARE = 0.8
WHOLE_MODULUS = 65_521  # the largest prime of 16 bits: a table of values stays in the cache


class Dtype(NamedTuple):
    """`exact`: whole numbers up to this one, and sums of them, are held exactly."""

    item_bytes: int
    exact: int


DTYPES = {
    "float32": Dtype(4, 2**24),
    "float64": Dtype(8, 2**53),
    "float16": Dtype(2, 2**11),
    "bfloat16": Dtype(2, 2**8),
    "int32": Dtype(4, 2**31 - 1),
    "int64": Dtype(8, 2**63 - 1),
    "complex64": Dtype(8, 2**24),
    "complex128": Dtype(16, 2**53),
}


class Contender(StrictModel):
    """One way to reduce, on ranks that are placed in one way."""

    algorithm: str
    """A name, or the place of one of the user's own."""
    ring_order: RingOrder = "contiguous"
    """How a ring visits the nodes; contiguous for whatever is no ring."""
    placement: Placement = "contiguous"
    """Which node each rank is on."""

    @property
    def name(self) -> str:
        """What tables call it; who is placed otherwise has the same name."""
        order = "" if self.ring_order == "contiguous" else f" {self.ring_order}"
        return short(self.algorithm) + order


class BenchSpec(StrictModel):
    """A whole bench, the same on every rank."""

    sizes_bytes: tuple[int, ...]
    """Of the buffer on every rank."""
    contenders: tuple[Contender, ...]
    """Who takes turns."""
    dtype: str = "float32"
    """Of the elements: one of DTYPES."""
    rounds: int = ROUNDS
    """Counted rounds."""
    warmup_rounds: int = WARMUP_ROUNDS
    """Rounds before them that are not counted."""

    @property
    def num_turns(self) -> int:
        """All-reduces, or rows of small ones, in all."""
        return (self.rounds + self.warmup_rounds) * len(self.sizes_bytes) * len(self.contenders)


class BenchArgument(StrictModel):
    """Everything that a rank needs to know."""

    rank: RankArgument
    """Who and where this rank is."""
    bench: BenchSpec
    """What is timed."""


def modulus(dtype: str, num_ranks: int) -> int:
    """A prime: values below it, one from every rank, have a sum that is exact.

    Raises BenchError where the type cannot hold that for so many ranks.
    """
    most = min(WHOLE_MODULUS, DTYPES[dtype].exact // num_ranks + 1)
    found = next((n for n in range(most, 2, -1) if _is_prime(n)), None)
    if found is None:
        raise BenchError(
            f"DTYPE={dtype} on {num_ranks} ranks",
            rule="every sum is checked exactly, and it holds whole numbers up to "
            f"{DTYPES[dtype].exact} only",
            fix="DTYPE=float32",
        )
    return found


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % k for k in range(2, int(number**0.5) + 1))


def contenders(
    algorithms: Iterable[str], ring_orders: Sequence[str], placements: Sequence[str]
) -> tuple[Contender, ...]:
    """Every algorithm on every placement, rings in every order. Raises BenchError, JobSpecError."""
    _require_known("RING_ORDER", ring_orders, RING_ORDERS)
    _require_known("PLACEMENT", placements, PLACEMENTS)
    named = list(dict.fromkeys(_resolved(name) for name in algorithms))
    if not named:
        raise BenchError(
            "ALGORITHMS is empty", "one algorithm or more", f'ALGORITHMS="{BASE} hierarchical"'
        )
    return tuple(
        Contender.model_validate({"algorithm": name, "ring_order": order, "placement": placement})
        for placement in dict.fromkeys(placements)
        for name in named
        for order in (dict.fromkeys(ring_orders) if name == "ring" else ("contiguous",))
    )


def _require_known(variable: str, given: Sequence[str], known: Sequence[str]) -> None:
    for word in given:
        if word not in known:
            near = get_close_matches(word, known, n=1) or known[:1]
            raise BenchError(
                f"{variable}={word[:40]!r}",
                f"is one of {', '.join(known)}",
                f"{variable}={near[0]}",
            )
    if not given:
        raise BenchError(
            f"{variable} is empty", f"one or more of {', '.join(known)}", f"{variable}={known[0]}"
        )


def _resolved(name: str) -> str:
    """The algorithm as ranks find it, too."""
    if not reduces(require_algorithm(name)):
        others = ", ".join(each for each in ALGORITHMS if reduces(each))
        raise BenchError(
            f"ALGORITHMS: {name} adds nothing up",
            rule=f"only sums are timed: {others}, or my.py:build",
            fix=f"leave {name} out",
        )
    return look_for(name, "algorithm") if is_import_path(name) else name


def job_of(contender: Contender) -> JobSpec:
    """The job whose gradients would go that way. Raises JobSpecError."""
    return load_job("hier", [f"ddp.algorithm={json.dumps(contender.algorithm)}"])


def require_dtype(dtype: str) -> str:
    """Raises BenchError for a type that is not timed."""
    _require_known("DTYPE", [dtype], tuple(DTYPES))
    return dtype


def fabric_of(placement: Placement, nodes: int, ranks_per_node: int) -> Fabric:
    return Fabric(node_of(placement, nodes, ranks_per_node))


def check_fits(
    spec: BenchSpec, nodes: int, ranks_per_node: int, facts: Sequence[NodeFacts]
) -> None:
    """Raises BenchError where this cluster cannot do it: algorithms, whole elements, memory."""
    modulus(spec.dtype, nodes * ranks_per_node)
    item_bytes = DTYPES[spec.dtype].item_bytes
    for size in spec.sizes_bytes:
        if size % item_bytes:
            raise BenchError(
                f"{size_words(size)} of {spec.dtype}",
                rule=f"a buffer holds whole elements of {item_bytes} bytes",
                fix=f"SIZES={-(-size // item_bytes) * item_bytes}",
            )
    for each in spec.contenders:
        build = find_algorithm(each.algorithm).build
        try:
            if build:
                build(fabric_of(each.placement, nodes, ranks_per_node), each.ring_order, 0)
        except UsageError as exc:
            raise BenchError(
                f"{each.name}: {exc}",
                rule="every algorithm must be possible on these ranks",
                fix=f"leave {each.name} out of ALGORITHMS",
            ) from exc
    _check_memory(spec, ranks_per_node, facts)


def needed_bytes(spec: BenchSpec) -> int:
    """What one rank holds at most: buffers of native, others of each placement, one for parts, and,
    on one node, one to see what memory allows."""
    placements = {each.placement for each in spec.contenders}
    buffers = sum(size * in_a_row(size) for size in spec.sizes_bytes)
    return buffers * (1 + len(placements)) + 2 * max(spec.sizes_bytes)


def _check_memory(spec: BenchSpec, ranks_per_node: int, facts: Sequence[NodeFacts]) -> None:
    for boot_id in {each.boot_id for each in facts}:
        sharing = [each for each in facts if each.boot_id == boot_id]
        need = needed_bytes(spec) * ranks_per_node * len(sharing)
        have = int(MEMORY_SHARE * min(each.memory_bytes for each in sharing))
        if need > have:
            raise BenchError(
                f"{', '.join(map(size_words, spec.sizes_bytes))}: "
                f"{need / 1e9:,.1f} GB on the {ranks_per_node * len(sharing)} ranks of one machine",
                rule=f"buffers of all ranks fit into {MEMORY_SHARE:.0%} of its memory, "
                f"{have / 1e9:,.1f} GB",
                fix="smaller or fewer SIZES, or fewer ALGORITHMS",
            )
