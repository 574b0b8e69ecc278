"""Claims that hold exactly: small whole numbers, other ones on each rank and at each place.

The right answers are worked out in plain Python, from the same numbers.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ddp import ALGORITHMS, DistributedDataParallel
from jobs.proof.claims import Claim
from jobs.proof.lesson import FABRIC, checksum
from jobs.proof.lines import first
from jobs.proof.ranks import TIMEOUT_S

SAMPLES, INPUTS, OUTPUTS = 3, 5, 2
MICRO_STEPS = 3
SETTLED = [name for name, algorithm in ALGORITHMS.items() if algorithm.proof != "none"]
"""Algorithms that reduce."""


def wrap(module: nn.Module, **arguments: Any) -> DistributedDataParallel:
    """On a fabric of two nodes, with waits that end."""
    arguments = {"fabric": FABRIC, "timeout_s": TIMEOUT_S, **arguments}
    return DistributedDataParallel(module, **arguments)


def numbers(rank: int, micro_step: int = 0) -> list[list[int]]:
    """(SAMPLES, INPUTS) whole numbers of one rank and micro-step."""
    places = range(SAMPLES * INPUTS)
    flat = [(place * (rank + 2) + 5 * micro_step) % 11 - 4 for place in places]
    return [flat[at : at + INPUTS] for at in range(0, len(flat), INPUTS)]


def inputs(rank: int, micro_step: int = 0) -> Tensor:
    return torch.tensor(numbers(rank, micro_step), dtype=torch.float32)


def column_sums(rank: int, micro_steps: Sequence[int] = (0,)) -> list[float]:
    """The gradient of each weight of one output, if the loss is the sum of all outputs."""
    rows = [row for micro_step in micro_steps for row in numbers(rank, micro_step)]
    return [float(sum(row[column] for row in rows)) for column in range(INPUTS)]


def mean_sums(num_ranks: int, micro_steps: Sequence[int] = (0,)) -> list[float]:
    columns = zip(*(column_sums(rank, micro_steps) for rank in range(num_ranks)), strict=True)
    return [sum(column) / num_ranks for column in columns]


def weight_gradient(layer: nn.Linear) -> list[float]:
    """Of the first output; the others have the same."""
    assert layer.weight.grad is not None
    gradient: list[float] = layer.weight.grad[0].tolist()
    return gradient


def differing(what: str, found: Sequence[Any], wanted: Sequence[Any]) -> str | None:
    """Where two lists differ first."""
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if one != other:
            return f"{what}: number {place} is {one}, not {other}"
    return None


def ask_division(rank: int, num_ranks: int) -> dict[str, list[float]]:
    del num_ranks
    found = {}
    for name in SETTLED:
        layer = nn.Linear(INPUTS, OUTPUTS)
        wrapped = wrap(layer, algorithm=name)
        wrapped(inputs(rank)).sum().backward()
        found[name] = weight_gradient(layer)
        wrapped.close()
    return found


def judge_division(answers: Sequence[dict[str, list[float]]]) -> str | None:
    wanted = mean_sums(len(answers))
    return first(
        differing(f"{name}, rank {rank}, gradient", answer[name], wanted)
        for rank, answer in enumerate(answers)
        for name in SETTLED
    )


class Mixed(nn.Module):
    """Parameters and buffers of several kinds."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.layer = nn.Linear(INPUTS, OUTPUTS)
        self.small = nn.Linear(2, 3, dtype=torch.bfloat16)
        self.frozen = nn.Parameter(torch.randn(4), requires_grad=False)
        self.register_buffer("count", torch.tensor([rank, rank + 7]))
        self.register_buffer("flags", torch.tensor([rank % 2 == 0, rank > 1]))
        self.register_buffer("shift", torch.full((3,), float(rank)))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x).sum() + self.small.weight.sum() + self.small.bias.sum()
        return outputs


def state(module: nn.Module) -> dict[str, str]:
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: checksum([tensor]) for name, tensor in named}


def ask_broadcast(rank: int, num_ranks: int) -> list[dict[str, str]]:
    del num_ranks
    torch.manual_seed(100 + rank)
    module = Mixed(rank)
    before = state(module)
    wrapped = wrap(module)
    after = state(module)
    wrapped.close()
    return [before, after]


def judge_broadcast(answers: Sequence[list[dict[str, str]]]) -> str | None:
    wanted, _ = answers[0]
    for rank, (before, after) in enumerate(answers):
        for name, value in wanted.items():
            if rank and before[name] == value:
                return f"{name}: rank {rank} began as rank 0 did, which shows nothing"
            if after[name] != value:
                return f"{name}: rank {rank} holds {after[name]}, rank 0 began with {value}"
    return None


def ask_no_sync(rank: int, num_ranks: int) -> dict[str, Any]:
    del num_ranks
    layer = nn.Linear(INPUTS, OUTPUTS)
    wrapped = wrap(layer)
    with wrapped.no_sync():
        for micro_step in range(1, MICRO_STEPS):
            wrapped(inputs(rank, micro_step)).sum().backward()
    inside = {"local": weight_gradient(layer), "sent": len(wrapped.communication().buckets)}
    wrapped(inputs(rank)).sum().backward()
    outside = {"mean": weight_gradient(layer), "buckets": len(wrapped.communication().buckets)}
    planned = len(wrapped.plan.buckets)
    wrapped.close()
    return {**inside, **outside, "planned": planned}


def judge_no_sync(answers: Sequence[dict[str, Any]]) -> str | None:
    mean = mean_sums(len(answers), range(MICRO_STEPS))
    return first(_judge_no_sync(rank, answer, mean) for rank, answer in enumerate(answers))


def _judge_no_sync(rank: int, answer: dict[str, Any], mean: list[float]) -> str | None:
    if answer["sent"]:
        return f"rank {rank} reduced {answer['sent']} buckets inside no_sync, not 0"
    local = column_sums(rank, range(1, MICRO_STEPS))
    inside = differing(f"rank {rank}, gradient inside no_sync", answer["local"], local)
    outside = differing(f"rank {rank}, gradient after it", answer["mean"], mean)
    if answer["buckets"] != answer["planned"]:
        outside = f"rank {rank} reduced {answer['buckets']} buckets after it"
    return inside or outside


class Shifted(nn.Module):
    """Adds buffers to what its layer says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(INPUTS, OUTPUTS)
        self.register_buffer("shift", torch.zeros(3))
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("flag", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x).sum() + self.get_buffer("shift").sum()
        return outputs

    def put(self, number: int) -> None:
        self.get_buffer("shift").fill_(number + 0.5)
        self.get_buffer("count").fill_(number)
        self.get_buffer("flag").fill_(number % 2 == 0)

    def held(self) -> list[float]:
        return [float(buffer.flatten()[-1]) for buffer in self.buffers()]


def ask_buffers(rank: int, num_ranks: int) -> dict[str, list[float]]:
    """What the buffers hold after each kind of forward, where ranks had different ones."""
    del num_ranks
    module = Shifted()
    wrapped = wrap(module)
    module.put(rank)
    found = {"own": module.held()}
    module.eval()
    wrapped(inputs(rank))
    found["after eval"] = module.held()
    module.train()
    with torch.no_grad():
        wrapped(inputs(rank))
    found["after no_grad"] = module.held()
    wrapped(inputs(rank)).backward()
    found["after training"] = module.held()
    wrapped.close()
    return found


def judge_buffers(answers: Sequence[dict[str, list[float]]]) -> str | None:
    return first(_judge_buffers(answers[0]["own"], r, answer) for r, answer in enumerate(answers))


def _judge_buffers(
    first_rank: list[float], rank: int, answer: dict[str, list[float]]
) -> str | None:
    own = answer["own"]
    if rank and own == first_rank:
        return f"rank {rank} had rank 0's buffers from the start, which shows nothing"
    wanted = {"after eval": own, "after no_grad": own, "after training": first_rank}
    return first(differing(f"rank {rank}, buffers {k}", answer[k], v) for k, v in wanted.items())


def ask_lone_evaluation(rank: int, num_ranks: int) -> list[float]:
    """Rank 0 alone looks at what it has, in both ways; then all train."""
    del num_ranks
    module = Shifted()
    wrapped = wrap(module)
    if rank == 0:
        module.eval()
        wrapped(inputs(rank))
        module.train()
        with torch.no_grad():
            wrapped(inputs(rank))
    wrapped(inputs(rank)).backward()
    wrapped.close()
    return weight_gradient(module.layer)


def judge_lone_evaluation(answers: Sequence[list[float]]) -> str | None:
    wanted = mean_sums(len(answers))
    return first(
        differing(f"rank {rank}, gradient", found, wanted) for rank, found in enumerate(answers)
    )


def _claims() -> Iterator[Claim]:
    names = ", ".join(SETTLED)
    yield Claim(
        "broadcast at wrap",
        "parameters and buffers of 4 dtypes begin as on rank 0, bytes",
        ask_broadcast,
        judge_broadcast,
    )
    yield Claim(
        "division",
        f"gradients are the mean over 4 ranks, whole numbers, exactly: {names}",
        ask_division,
        judge_division,
    )
    yield Claim(
        "no_sync",
        "inside it gradients stay local and nothing is sent; after it the mean of all, exactly",
        ask_no_sync,
        judge_no_sync,
    )
    yield Claim(
        "buffers",
        "a training forward sees rank 0's; eval and no_grad leave them alone",
        ask_buffers,
        judge_buffers,
    )
    yield Claim(
        "lone evaluation",
        "rank 0 evaluates while nobody else does; training goes on, exactly",
        ask_lone_evaluation,
        judge_lone_evaluation,
    )


CLAIMS = tuple(_claims())
