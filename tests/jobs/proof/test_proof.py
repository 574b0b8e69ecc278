"""`proof`: every line holds, and breaking what a line is about makes that line fail."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import ddp.agreement
import ddp.bucket
import ddp.executor
import ddp.membership
import ddp.parallel
import jobs.proof.whole
from ddp import ALGORITHMS, DistributedDataParallel
from jobs.proof.claims import all_claims
from jobs.proof.lesson import Table
from jobs.proof.lines import Line, to_json
from jobs.proof.whole import prove
from tests.jobs.command import call, valid

pytestmark = pytest.mark.usefixtures("forked")


WHOLE = "division"
"""What is broken where all lines are asked for; where something else is, it is the lines it is
about."""


def ask_only(monkeypatch: pytest.MonkeyPatch, names: set[str]) -> int:
    """Claims of other names are not asked; returns how many are."""
    chosen = tuple(claim for claim in all_claims() if claim.name in names)
    monkeypatch.setattr(jobs.proof.whole, "all_claims", lambda: chosen)
    return len(chosen)


def everything() -> tuple[list[Table], dict[str, Line]]:
    found = list(prove())
    lines = [each for each in found if isinstance(each, Line)]
    return [each for each in found if isinstance(each, Table)], {each.name: each for each in lines}


def test_all_is_proven_and_the_table_shows_training() -> None:
    tables, lines = everything()
    assert {name: line.first_difference for name, line in lines.items()} == dict.fromkeys(lines)
    (table,) = tables
    assert len(table.rows) == 16
    assert len({row.sum_single for row in table.rows}) == 16
    assert table.rows[-1].loss_single < 0.5 * table.rows[0].loss_single
    assert any(row.difference for row in table.rows)  # two ways to add up the loss
    for name in ALGORITHMS:
        assert name in lines or f"{name}, contiguous" in lines


def never(*_: Any, **__: Any) -> None:
    """Does not do what it should."""


@contextmanager
def still_in_sync(_: Any) -> Iterator[None]:
    yield


def nobody_differs(self: Any) -> Any:
    return replace(READ_STATUS(self), parameters_differ=False)


def sums_only_the_first(self: Any, buffer: Any, segments: int, bucket: int) -> Any:
    if bucket:
        return ddp.executor.Traffic(0, 0)
    return ALL_REDUCE(self, buffer, segments, bucket)


def cuts_otherwise(self: Any, buffer: Any, segments: int, bucket: int) -> Any:
    """The right sum, in another order."""
    return ALL_REDUCE(self, buffer, max(1, segments - 1), bucket)


def draws_as_rank_0(self: Any, *inputs: Any) -> Any:
    torch.manual_seed(0)
    return FORWARD(self, *inputs)


FORWARD = DistributedDataParallel.forward
READ_STATUS = ddp.bucket.Bucket.read_status
ALL_REDUCE = ddp.executor.ScheduledCollective.all_reduce
BROKEN: dict[str, tuple[Any, str, Callable[..., Any], set[str]]] = {
    "division": (ddp.bucket.Bucket, "average", never, {"division", "training", "no_sync"}),
    "broadcast": (
        ddp.membership.PrivateGroup,
        "broadcast_bytes",
        never,
        {"broadcast at wrap", "training", "buffers"},
    ),
    "no_sync flag": (DistributedDataParallel, "no_sync", still_in_sync, {"no_sync"}),
    "plan agreement": (ddp.agreement, "check_same_plan", never, {"plan agreement"}),
    "broadcast of buffers": (
        DistributedDataParallel,
        "_broadcast_buffers",
        never,
        {"buffers", "batch norm"},
    ),
    "own numbers": (DistributedDataParallel, "forward", draws_as_rank_0, {"dropout"}),
    "fingerprint": (ddp.bucket.Bucket, "read_status", nobody_differs, {"drift"}),
    "buckets": (
        ddp.executor.ScheduledCollective,
        "all_reduce",
        sums_only_the_first,
        {"ring, contiguous", "hierarchical", "batch norm"},
    ),
    "order of sums": (
        ddp.executor.ScheduledCollective,
        "all_reduce",
        cuts_otherwise,
        {"ring, contiguous", "ring, interleaved", "ring, shuffled", "hierarchical"},
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_not_proven(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    owner, name, broken, wanted = BROKEN[what]
    monkeypatch.setattr(owner, name, broken)
    asked = len(all_claims()) if what == WHOLE else ask_only(monkeypatch, wanted)
    code, out, err = call(capsys, "proof", "--json")
    document = valid(out, "proof")
    wrong = {line["name"]: line["first_difference"] for line in document["lines"]}
    wrong = {name: difference for name, difference in wrong.items() if difference is not None}
    assert (code, document["ok"], err) == (1, False, "")
    assert {line["name"] for line in document["lines"] if not line["proven"]} == set(wrong)
    assert wanted <= set(wrong), document
    assert len(document["lines"]) == asked + 2 - ("training" in wrong and not_told(out))
    if what == WHOLE:  # a first difference says where and what
        assert wrong["division"] == "ring, rank 0, gradient: number 0 is 8.0, not 2.0"
        assert wrong["training"].startswith("step 1: rank 0 holds parameters ")


def not_told(out: str) -> bool:
    """Whether the ranks could not even give the table, which then has one line, not two."""
    names = [line["name"] for line in json.loads(out)["lines"]]
    return "one large batch" not in names


def test_a_wrong_collective_of_one_rank_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only rank 0 is looked at."""
    begin = DistributedDataParallel.__init__

    def begin_otherwise(self: Any, module: nn.Module, **arguments: Any) -> None:
        begin(self, module, **arguments)
        if self._membership.rank == 3:
            next(module.parameters()).data.view(-1)[:1] += 1e-3

    monkeypatch.setattr(DistributedDataParallel, "__init__", begin_otherwise)
    assert ask_only(monkeypatch, {"broadcast at wrap"}) == 1
    _, lines = everything()
    assert "rank 3 holds" in str(lines["broadcast at wrap"].first_difference)


def test_a_proof_of_nothing_is_none() -> None:
    assert to_json([])["ok"] is False
    assert to_json([Line("a", "b"), Line("c", "d", "e")])["ok"] is False
    assert to_json([Line("a", "b")]) == {
        "schema": 1,
        "ok": True,
        "lines": [{"name": "a", "proven": True, "first_difference": None}],
    }
