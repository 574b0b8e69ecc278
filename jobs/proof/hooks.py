"""A communication hook of the user's own: whether what it makes is the mean of all ranks.

Each number of ranks has processes of its own, since a hook may reduce over all there are. What
must come out is added up here, rank after rank. Hooks may round (halves of a float, say), so they
are held to a tolerance, and all ranks to the same bytes.
"""

from collections.abc import Iterator, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn

from jobs.owncode import find_hook, short
from jobs.proof.exact import wrap
from jobs.proof.lesson import checksum
from jobs.proof.lines import Line, first
from jobs.proof.ranks import ask

RANK_COUNTS = (2, 3, 4)
NUMELS = (1, 3, 61, 1003)
BUCKET_MB = 0.0003
STEPS = 3
TOLERANCE = 0.02
"""Of a step's largest gradient: sums of bfloat16 over four ranks stay below it."""
SAYS = (
    f"the mean, within {TOLERANCE * 100:.0f} % of the largest gradient: {STEPS} steps in several "
    f"buckets, on {', '.join(map(str, RANK_COUNTS))} processes"
)


class Given(nn.Module):
    """Has exactly the gradients that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(numel)) for numel in NUMELS)

    def forward(self, gradients: Sequence[Tensor]) -> Tensor:
        pairs = zip(self.weights, gradients, strict=True)
        return torch.stack([(weight * given).sum() for weight, given in pairs]).sum()


def prove_hook(place: str) -> Line:
    """The line of a hook. Raises OwnCodeError where there is none at that place."""
    find_hook(place)
    return Line(f"hook {short(place)}", SAYS, first(_differences(place)))


def _differences(place: str) -> Iterator[str | None]:
    for num_ranks in RANK_COUNTS:
        with ask([partial(ask_hook, place)], num_ranks) as answers:
            asked = next(answers)
        found = asked.problem or _judge(asked.by_rank)
        yield f"{num_ranks} ranks: {found}" if found else None


def ask_hook(place: str, rank: int, num_ranks: int) -> dict[str, Any]:
    """The first difference that this rank sees, and what it holds after each step."""
    module = Given()
    wrapped = wrap(module, fabric=None, bucket_cap_mb=BUCKET_MB)
    wrapped.register_comm_hook(None, find_hook(place).hook)
    differences, held = [], []
    for step in range(STEPS):
        module.zero_grad()
        wrapped(gradients(rank, step)).backward()
        differences.append(_difference(module, step, num_ranks))
        held.append(checksum([each for each in grads(module) if each is not None]))
    wrapped.close()
    return {"difference": first(differences), "held": held}


def gradients(rank: int, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return [torch.randn(numel, generator=generator) for numel in NUMELS]


def grads(module: Given) -> list[Tensor | None]:
    return [weight.grad for weight in module.weights]


def _difference(module: Given, step: int, num_ranks: int) -> str | None:
    local = [gradients(rank, step) for rank in range(num_ranks)]
    means = [reduce(torch.add, parts) / num_ranks for parts in zip(*local, strict=True)]
    allowed = TOLERANCE * max(float(mean.abs().max()) for mean in means)
    for number, (found, mean) in enumerate(zip(grads(module), means, strict=True)):
        if found is None:
            return f"step {step + 1}: parameter {number} has no gradient"
        wrong = ~((found - mean).abs() <= allowed)  # also where it is not a number
        if wrong.any():
            at = int(wrong.nonzero()[0])
            return (
                f"step {step + 1}: element {at} of parameter {number} is {found[at].item():.6g}, "
                f"where the mean is {mean[at].item():.6g}"
            )
    return None


def _judge(answers: Sequence[dict[str, Any]]) -> str | None:
    for rank, answer in enumerate(answers):
        if answer["difference"]:
            return f"rank {rank}, {answer['difference']}"
        for step, held in enumerate(answer["held"]):
            if held != answers[0]["held"][step]:
                return f"step {step + 1}: rank {rank} holds other gradients than rank 0"
    return None
