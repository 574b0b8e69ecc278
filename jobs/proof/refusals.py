"""Claims about what must stop: every rank raises, and all raise the same text."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ddp import DdpError, Fabric
from jobs.proof.claims import Claim
from jobs.proof.exact import INPUTS, OUTPUTS, inputs, wrap
from jobs.proof.lines import first

NOTHING = "nothing was raised"
ODD_RANK = 1
"""The rank that does something else than the others."""


def message(call: Callable[[], Any]) -> str:
    """The text of the error that `call` ends with."""
    try:
        call()
    except DdpError as exc:
        return str(exc)
    return NOTHING


def one_text(what: str, texts: Sequence[str], *words: str) -> str | None:
    """Nothing to say where all ranks raised one text, with these words in it."""
    for rank, text in enumerate(texts):
        if text == NOTHING:
            return f"{what}: rank {rank} went on"
        if text != texts[0]:
            return f"{what}: rank {rank} says {text!r}, rank 0 says {texts[0]!r}"
    missing = [word for word in words if word not in texts[0]]
    return f"{what}: the error does not name {missing[0]!r}: {texts[0]!r}" if missing else None


def ask_plans(rank: int, num_ranks: int) -> dict[str, str]:
    """The plan where all ask for the same; and what comes of one rank asking for another."""
    odd = rank == ODD_RANK
    found = {}
    wrapped = wrap(nn.Linear(INPUTS, OUTPUTS))
    found["plan"] = wrapped.plan.sha256
    wrapped.close()
    unlike: dict[str, dict[str, Any]] = {
        "bucket_cap_mb": {"bucket_cap_mb": 1.0 if odd else 2.0},
        "algorithm": {"algorithm": "ring" if odd else "hierarchical"},
        "node": {"fabric": Fabric((0,) * num_ranks if odd else (0, 0, *[1] * (num_ranks - 2)))},
    }
    for name, arguments in unlike.items():
        found[name] = message(partial(wrap, nn.Linear(INPUTS, OUTPUTS), **arguments))
    outputs = OUTPUTS + odd
    found["model"] = message(partial(wrap, nn.Linear(INPUTS, outputs)))
    return found


def judge_plans(answers: Sequence[dict[str, str]]) -> str | None:
    for rank, answer in enumerate(answers):
        if answer["plan"] != answers[0]["plan"]:
            return f"rank {rank} has plan {answer['plan'][:12]}, rank 0 {answers[0]['plan'][:12]}"
    return first(
        one_text(
            f"another {name} on rank {ODD_RANK}",
            [answer[name] for answer in answers],
            f"rank {ODD_RANK}",
        )
        for name in answers[0]
        if name != "plan"
    )


class Branches(nn.Module):
    """Two layers; the second is left out where the caller says so."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(INPUTS, OUTPUTS)
        self.twig = nn.Linear(INPUTS, OUTPUTS)

    def forward(self, x: Tensor, *, whole: bool) -> Tensor:
        outputs: Tensor = self.trunk(x) + self.twig(x) if whole else self.trunk(x)
        return outputs


def ask_unused(rank: int, num_ranks: int) -> str:
    del num_ranks
    wrapped = wrap(Branches())
    text = message(lambda: wrapped(inputs(rank), whole=rank != ODD_RANK).sum().backward())
    wrapped.close()
    return text


def judge_unused(answers: Sequence[str]) -> str | None:
    return one_text(f"a layer left out on rank {ODD_RANK}", answers, "twig.weight")


def ask_drift(rank: int, num_ranks: int) -> str:
    """One rank changes a parameter by the smallest step; two backwards may pass until it shows."""
    del num_ranks
    layer = nn.Linear(INPUTS, OUTPUTS)
    wrapped = wrap(layer)

    def train() -> None:
        for _ in range(3):
            wrapped(inputs(rank)).sum().backward()

    if rank == ODD_RANK:
        with torch.no_grad():
            value = layer.weight[0, 0]
            value.copy_(torch.nextafter(value, torch.tensor(9.0)))
    text = message(train)
    wrapped.close()
    return text


def judge_drift(answers: Sequence[str]) -> str | None:
    return one_text(f"a parameter changed on rank {ODD_RANK}", answers, "weight")


CLAIMS = (
    Claim(
        "plan agreement",
        "one plan on all ranks; one of 4 ways to ask for another stops all, with one text each",
        ask_plans,
        judge_plans,
    ),
    Claim(
        "unused parameter",
        "one rank leaves a layer out: all stop, with one text that names it",
        ask_unused,
        judge_unused,
    ),
    Claim(
        "drift",
        "one rank changes the last bit of a parameter: all stop, with one text",
        ask_drift,
        judge_drift,
    ),
)
