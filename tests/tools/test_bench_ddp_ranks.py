"""What ranks of `make bench-ddp` do, with small sizes, as two processes on loopback."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ddp import Fabric
from ddp.bucket import Bucket
from tests.ddp.conftest import Ranks
from tools.bench_ddp import checks
from tools.bench_ddp.memory import memory_bytes
from tools.bench_ddp.ranks import take_turns
from tools.bench_ddp.variants import Variant

FABRIC = Fabric((0, 1))
SMALL: dict[str, Any] = {
    "layers": 4,
    "layer_bytes": 4096,
    "bucket_mb": 2 * 4096 / 2**20,
    "forward_ms": 1.0,
    "backward_ms": 8.0,
}
VARIANTS = (
    Variant("stock", None, **SMALL),
    Variant("native", "native", **SMALL),
    Variant("after", "hierarchical", more={"overlap": False}, **SMALL),
    Variant("per parameter", "hierarchical", more={"per_parameter": True}, **SMALL),
)


@pytest.fixture
def two_ranks() -> Iterator[Ranks]:
    importlib.import_module("torch._dynamo")  # torch's class imports it: once, not in each rank
    started = Ranks()
    try:
        yield started
    finally:
        started.kill()


def test_variants_take_turns_and_stock_has_our_buckets(two_ranks: Ranks) -> None:
    for found in two_ranks.run(2, lambda _rank: take_turns(VARIANTS, FABRIC, num_rounds=3)):
        sizes = {name: each["bucket_bytes"] for name, each in found.items()}
        assert sizes["stock"] == sizes["native"] == sizes["after"] == [8192, 8192]
        assert sizes["per parameter"] == [4096] * 4
        for name, each in found.items():
            assert len(each["steps"]) == 3, name
            num_buckets = 0 if name == "stock" else len(sizes[name])
            assert {len(step["buckets_s"]) for step in each["steps"]} == {num_buckets}
        for before, during in zip(found["after"]["steps"], found["native"]["steps"], strict=True):
            assert before["first_ready_s"] >= before["backward_s"], "nothing goes before the end"
            assert during["first_ready_s"] < during["backward_s"]
            assert during["backward_s"] <= during["call_s"] <= during["step_s"]


def test_steps_with_and_without_checks_take_turns(
    two_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was renamed, or is no longer on the way, would cost nothing."""
    monkeypatch.setattr(checks, "ROUNDS", 2)
    monkeypatch.setattr(checks, "VARIANT", VARIANTS[1])
    called: list[str] = []
    for owner, name, _ in checks.CHECKS:
        monkeypatch.setattr(owner, name, noting(getattr(owner, name), called))
    steps: list[tuple[bool, set[str]]] = []
    in_turn = checks.in_turn

    def watched(step: Any, leave_out: Any, group: Any) -> Any:
        out = [False]

        def counted() -> None:
            called.clear()
            step()
            steps.append((out[0], set(called)))

        @contextmanager
        def told() -> Iterator[None]:
            with leave_out():
                out[0] = True
                yield
                out[0] = False

        return in_turn(counted, told, group)

    monkeypatch.setattr(checks, "in_turn", watched)
    write_status = Bucket.write_status

    def body(_rank: int) -> Any:
        return checks.checks_cost(FABRIC), steps, Bucket.write_status is write_status

    names = {name for _, name, _ in checks.CHECKS}
    for found, seen, given_back in two_ranks.run(2, body):
        assert given_back
        assert set(found) == {"paced", "busy"}
        assert all(len(pairs) == 2 and min(map(min, pairs)) > 0 for pairs in found.values())
        assert len(seen) == 2 * 2 * (checks.WARMUP_STEPS + 2)
        assert all(done == (set() if left_out else names) for left_out, done in seen)
        assert sum(left_out for left_out, _ in seen) == len(seen) // 2


def noting(check: Any, called: list[str]) -> Any:
    def call(*arguments: Any, **more: Any) -> Any:
        called.append(check.__name__)
        return check(*arguments, **more)

    return call


def test_memory_is_read_in_bytes() -> None:
    held, most = memory_bytes("VmRSS"), memory_bytes("VmHWM")
    assert 2**20 < held <= most < 2**40
    with pytest.raises(SystemExit, match="no VmNone"):
        memory_bytes("VmNone")
