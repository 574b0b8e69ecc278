"""register_comm_hook: torch's own hooks and ours, on our wrapper, with torch's signature."""

import importlib
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from ddp.comm_hook import CommHook
from ddp.executor import NoCollective
from tests.ddp.samples import (
    Branches,
    as_lists,
    gradients,
    integers,
    local_gradients,
    message,
    the_one_text,
    wrap,
)

Future = torch.futures.Future


def build() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


def three_steps(wrapped: nn.Module, rank: int) -> list[Any]:
    """What the parameters are after each step, with inputs that differ by rank."""
    after = []
    for step in range(3):
        wrapped.zero_grad()
        inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(10 * step + rank))
        wrapped(inputs).square().sum().backward()
        with torch.no_grad():
            for parameter in wrapped.parameters():
                parameter -= 0.01 * parameter.grad  # type: ignore[operator]
        after.append([parameter.tolist() for parameter in wrapped.parameters()])
    return after


def all_close(found: list[Any], wanted: list[Any], tolerance: float) -> bool:
    return all(
        torch.allclose(torch.tensor(one), torch.tensor(other), rtol=tolerance, atol=tolerance / 10)
        for theirs, ours in zip(found, wanted, strict=True)
        for one, other in zip(theirs, ours, strict=True)
    )


HOOKS: dict[str, Any] = {
    "allreduce": default_hooks.allreduce_hook,
    "fp16": default_hooks.fp16_compress_hook,
}


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("overlap", [True, False])
def test_torchs_hooks_do_as_on_torchs_class(ranks: Any, num_ranks: int, overlap: bool) -> None:
    """The same numbers after every step; ranks agree to the last byte.

    Two ranks add in one way only; with three the cut into buckets decides how gloo adds.
    """

    def body(rank: int) -> dict[str, tuple[Any, Any, str]]:
        found = {}
        for name, hook in HOOKS.items():
            theirs = TorchDDP(build())
            theirs.register_comm_hook(None, hook)
            wanted = three_steps(theirs, rank)
            ours = wrap(build(), per_parameter=False, overlap=overlap)
            ours.register_comm_hook(None, hook)
            found[name] = (wanted, three_steps(ours, rank), ours.verify_parameters())
            ours.close()
        return found

    importlib.import_module("torch._dynamo")  # torch's class imports it: once, not in each rank
    values = ranks.run(num_ranks, body)
    for name in HOOKS:
        assert len({value[name][2] for value in values}) == 1
        wanted, found, _ = values[0][name]
        assert num_ranks == 3 or found == wanted, name
        assert all_close(found, wanted, 1e-3 if name == "fp16" else 1e-5), name
    assert values[0]["fp16"][1] != values[0]["allreduce"][1]


def test_torchs_bf16_hook(ranks: Any) -> None:
    """Which torch's class refuses without a GPU: the mean of halves in bfloat16."""

    def body(rank: int) -> tuple[list[Any], list[Any]]:
        module = build()
        inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(rank))
        local = as_lists(local_gradients(module, inputs))
        wrapped = wrap(module)
        wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
        wrapped(inputs).sum().backward()
        return local, as_lists(gradients(module))

    (one, found), (other, again) = ranks.run(2, body)
    pairs = zip(one, other, strict=True)
    halves = [[torch.tensor(each).bfloat16() / 2 for each in pair] for pair in pairs]
    assert found == again == as_lists([(left + right).float() for left, right in halves])


def test_powersgd(ranks: Any) -> None:
    """Its state counts on buckets' indices, shapes and last one."""
    pytest.importorskip("numpy")
    importlib.import_module("torch._dynamo")  # torch's class imports it: once, not in each rank
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    def body(rank: int) -> tuple[Any, Any, str]:
        found = []
        for kind in (TorchDDP, partial(wrap, per_parameter=False)):
            wrapped = kind(build())
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5
            )
            wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
            found.append(three_steps(wrapped, rank))
            assert state.iter == 3
        return found[0], found[1], wrapped.verify_parameters()

    (wanted, found, one), (_, _, other) = ranks.run(2, body)
    assert one == other
    assert all_close(found, wanted, 1e-5)


class Recording:
    """A hook that notes what a bucket says, and averages by itself."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, bool, list[tuple[int, ...]], int]] = []

    def __call__(self, state: dict[str, float], bucket: Any) -> Any:
        buffer = bucket.buffer()
        shapes = [tuple(gradient.shape) for gradient in bucket.gradients()]
        assert shapes == [tuple(parameter.shape) for parameter in bucket.parameters()]
        self.seen.append((bucket.index(), bucket.is_last(), shapes, buffer.numel()))
        bucket.set_buffer(buffer * state["scale"])
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        assert work is not None
        return work.get_future().then(lambda future: future.value()[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("find", [True, False])
def test_what_a_hook_is_given_and_gives(ranks: Any, dtype: torch.dtype, find: bool) -> None:
    """Its result is the gradient as it stands, in every dtype, and unused ones stay None."""

    def body(rank: int) -> tuple[Any, Any, str]:
        module = nn.ModuleDict({name: nn.Linear(2, 3, dtype=dtype) for name in ("spare", "used")})
        module.forward = module["used"].forward  # type: ignore[method-assign]
        if not find:
            del module["spare"]
        recording = Recording()
        wrapped = wrap(module, find_unused_parameters=find)
        wrapped.register_comm_hook({"scale": 2.0}, recording)
        inputs = integers(rank, 4, 2).to(dtype)
        wrapped(inputs).sum().abs().backward() if dtype.is_complex else wrapped(
            inputs
        ).sum().backward()
        found = [p.grad for p in module.parameters()]
        bias = found[-1]
        assert bias is not None
        return (
            recording.seen,
            (bias.real.tolist(), [g is None for g in found]),
            wrapped.plan.algorithm,
        )

    for seen, (bias, missing), name in ranks.run(2, body):
        order = [((3,), 3), ((3, 2), 6)] * (2 if find else 1)
        last = len(order) - 1
        assert seen == [(i, i == last, [shape], n) for i, (shape, n) in enumerate(order)]
        if not dtype.is_complex:
            assert bias == [16.0] * 3  # 2 ranks, 4 rows each, scaled by 2
        assert missing == ([True, True] if find else []) + [False, False]
        assert name == "hook tests.ddp.test_comm_hook.Recording"


def wrong_size(_state: Any, bucket: Any) -> Any:
    future: Any = Future()
    future.set_result(bucket.buffer()[:1])
    return future


def no_future(_state: Any, bucket: Any) -> Any:
    return bucket.buffer()


def never(_state: Any, _bucket: Any) -> Any:
    return Future()


def broken(state: Any, bucket: Any) -> Any:
    if state == 1:
        raise ZeroDivisionError("in the hook")
    return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        (wrong_size, "its future holds 1 elements of torch.float32, where 4 elements"),
        (no_future, "returned Tensor: a hook returns a torch.futures.Future"),
        (never, "not done after 1 s"),
        (broken, "rank 1: ZeroDivisionError: in the hook"),
    ],
)
def test_a_hook_that_fails_stops_all_ranks(ranks: Any, hook: Any, words: str) -> None:
    def body(rank: int) -> None:
        wrapped = wrap(Branches(), timeout_s=1.0)
        wrapped.register_comm_hook(rank, hook)
        # no barrier afterwards: the hook may have left something open in the same group
        raise SystemExit(message(lambda: wrapped(torch.ones(1, 4)).sum().backward()))

    assert words in the_one_text([outcome.message for outcome in ranks.outcomes(2, body)])


def test_no_rank_calls_its_hook_where_one_gave_up(ranks: Any) -> None:
    """Else the others would wait inside it."""

    def body(rank: int) -> tuple[str, int]:
        recording = Recording()
        wrapped = wrap(Branches(), timeout_s=20)
        wrapped.register_comm_hook({"scale": 1.0}, recording)
        used = "right" if rank else "left right"
        text = message(lambda: wrapped(torch.ones(1, 4), used).sum().backward())
        return text, sum(index >= 2 for index, *_ in recording.seen)

    values = ranks.run(3, body)
    assert "no gradient reached 'left.bias'" in the_one_text([text for text, _ in values])
    assert [num for _, num in values] == [0, 0, 0]


def test_registering(ranks: Any) -> None:
    """Once, the same on every rank; steps without communication leave the hook out."""

    def body(rank: int) -> tuple[str, str, int, float]:
        wrapped = wrap(Branches())
        differ = message(lambda: wrapped.register_comm_hook(None, never if rank else broken))
        again = wrap(Branches())
        recording = Recording()
        again.register_comm_hook({"scale": 1.0}, recording)
        twice = message(lambda: again.register_comm_hook(None, never))
        with again.reduce_with(NoCollective()):
            again(torch.full((1, 4), rank + 1.0)).sum().backward()
        return differ, twice, len(recording.seen), gradients(again.module)[0].sum().item()

    first, second = ranks.run(2, body)
    assert "rank 1 registers hook tests.ddp.test_comm_hook.never and rank 0 hook" in first[0]
    assert second[0] == first[0]
    assert "one communication hook" in first[1]
    assert first[2] == second[2] == 0
    assert first[3] != second[3]


def test_what_comes_next_is_put_behind_what_a_future_holds() -> None:
    """On a GPU a future is done when its work is queued; `wait` is what queues ours behind it."""

    class Asked(Future):  # type: ignore[type-arg]
        waits = 0

        def wait(self) -> Any:
            self.waits += 1
            return super().wait()

    future = Asked()
    future.set_result(torch.ones(2))
    bucket: Any = SimpleNamespace(index=0, gradients=torch.zeros(2))
    CommHook("hook", None, lambda _state, _bucket: future, 5.0)(bucket)
    assert (bucket.gradients.tolist(), future.waits) == ([1.0, 1.0], 1)
