"""torch's own class as a job's wrapper, among ranks of its own: what it sends, awaits and tells."""

import importlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp.fabric import Fabric
from jobs.errors import ModelError
from jobs.sections import DdpSpec
from jobs.stock import HookedStock, Stock, in_short, is_symptom
from jobs.wrapper import Wrapper
from tests.ddp.conftest import Ranks

SPEC = DdpSpec(wrapper="torch", algorithm="native", timeout_s=20, bucket_cap_mb=0.0001)
HOOKED = SPEC.model_copy(update={"algorithm": "ring"})
DELAY_S = 0.4
BOTH = pytest.mark.parametrize("spec", [SPEC, HOOKED], ids=["stock", "hooked"])


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    importlib.import_module("torch._dynamo")  # torch's class imports it: once, not in each rank
    started = Ranks()
    yield started
    started.kill()


def wrap(module: nn.Module, spec: DdpSpec) -> Wrapper:
    return Stock(module, spec) if spec.is_stock else HookedStock(module, spec, Fabric((0, 1)))


def two_layers(*, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(1)
    middle = nn.BatchNorm1d(6) if norm else nn.Tanh()
    return nn.Sequential(nn.Linear(4, 6), middle, nn.Linear(6, 5))


def inputs(rank: int, step: int = 0) -> Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + rank))


def step(wrapper: Wrapper, rank: int, number: int = 0) -> list[Any]:
    """The gradients, which are taken off the module again."""
    wrapper(inputs(rank, number)).square().sum().backward()
    gradients = [parameter.grad for parameter in wrapper.parameters()]
    wrapper.module.zero_grad()
    return [gradient.tolist() for gradient in gradients if gradient is not None]


@BOTH
def test_gradients_are_the_mean_over_ranks(ranks: Ranks, spec: DdpSpec) -> None:
    def body(rank: int) -> list[list[Any]]:
        wrapper = wrap(two_layers(), spec)
        return [step(wrapper, rank, number) for number in range(3)]

    first, second = ranks.run(2, body)
    assert first == second
    for number in range(3):
        halves = [two_layers() for _ in range(2)]
        for rank, module in enumerate(halves):
            module(inputs(rank, number)).square().sum().backward()
        for mean, one, other in zip(
            first[number], halves[0].parameters(), halves[1].parameters(), strict=True
        ):
            assert one.grad is not None and other.grad is not None
            torch.testing.assert_close(torch.tensor(mean), (one.grad + other.grad) / 2)


@BOTH
def test_without_network_nothing_is_sent_not_even_buffers(ranks: Ranks, spec: DdpSpec) -> None:
    """Ranks do unlike many such steps: with anything sent they would not find together again."""

    def body(rank: int) -> tuple[list[float], list[Any], list[float], list[Any]]:
        module = two_layers(norm=True)
        wrapper = wrap(module, spec)
        step(wrapper, rank)
        with wrapper.without_network():
            module[1].running_mean.fill_(10.0 + 1000 * rank)
            for number in range(1 + 2 * rank):
                local = step(wrapper, rank, number)
            alone = wrapper.communication()
            buffers = module[1].running_mean.tolist()
        module[1].running_mean.fill_(20.0 + 1000 * rank)
        mean = step(wrapper, rank)
        told = [alone.traffic.inter_node_bytes, alone.exposed, alone.buckets]
        return buffers, [local, mean], module[1].running_mean.tolist(), told

    first, second = ranks.run(2, body)
    assert min(second[0]) > 0.9**3 * 1000 > 100 > max(first[0])  # a tenth of each batch comes in
    assert first[1][0] != second[1][0]
    assert first[1][1] == second[1][1]
    assert max(second[2]) < 100  # rank 0's again
    for rank in (first, second):
        sent, _, buckets = rank[3]
        assert sent == 0
        assert buckets == (None if spec.is_stock else [])  # one step is too few for a plan


@BOTH
def test_waiting_for_a_peer_is_exposed(ranks: Ranks, spec: DdpSpec) -> None:
    """For its gradients at the end of backward, for its buffers before the forward."""

    def body(rank: int) -> list[tuple[float, bool]]:
        wrapper = wrap(two_layers(norm=True), spec)
        for number in range(2):
            step(wrapper, rank, number)
        seen = []
        for late, module in ((1, wrapper.module[0]), (0, None)):
            wrapper.communication()
            handle = module and module.register_forward_hook(
                lambda *_, late=late: time.sleep(DELAY_S if rank == late else 0)
            )
            if module is None and rank == late:
                time.sleep(DELAY_S)
            began_ns = time.monotonic_ns()
            step(wrapper, rank)
            exposed = wrapper.communication().exposed
            longest = max(exposed, key=lambda each: each[1] - each[0])
            seconds = (longest[1] - longest[0]) / 1e9
            assert all(began_ns <= start <= end for start, end in exposed)
            seen.append((seconds, longest == exposed[-1]))
            if handle:
                handle.remove()
        return seen

    first, second = ranks.run(2, body)
    assert first[0][0] > DELAY_S / 2 and first[0][1]  # rank 0 waits at the end of backward
    assert second[1][0] > DELAY_S / 2 and not second[1][1]  # rank 1 for buffers of rank 0


def test_a_hook_of_ours_knows_its_buckets(ranks: Ranks) -> None:
    def body(rank: int) -> dict[str, Any]:
        wrapper = wrap(two_layers(), HOOKED)
        early = wrapper.plan
        steps = []
        for number in range(3):
            began_ns = time.monotonic_ns()
            step(wrapper, rank, number)
            steps.append((began_ns, wrapper.communication(), time.monotonic_ns()))
        plan = wrapper.plan
        assert plan is not None
        with wrapper.without_network():
            began_ns = time.monotonic_ns()
            step(wrapper, rank)
            alone = wrapper.communication()
        assert wrapper.calibrate() is not None
        for began, told, ended in [*steps, (began_ns, alone, time.monotonic_ns())]:
            for bucket in told.buckets or ():
                assert began < bucket.ready_ns <= bucket.start_ns <= bucket.end_ns < ended
        return {
            "early": early,
            "plan": plan.to_json(),
            "sent": [told.traffic.inter_node_bytes for _, told, _ in steps],
            "bytes": [[bucket.bytes for bucket in told.buckets or ()] for _, told, _ in steps],
            "alone": [(bucket.index, bucket.bytes) for bucket in alone.buckets or ()],
            "not sent": alone.traffic.inter_node_bytes,
        }

    first, second = ranks.run(2, body)
    gradient_bytes = 4 * sum(parameter.numel() for parameter in two_layers().parameters())
    assert first["plan"] == second["plan"]
    numels = [sum(bucket["numels"]) for bucket in first["plan"]["buckets"]]
    assert len(numels) > 1
    assert first["early"] is None
    assert first["sent"] == [gradient_bytes] * 3  # 2(N-1)/N of it
    assert first["bytes"][2] == [4 * numel for numel in numels]
    assert sum(first["bytes"][0]) == gradient_bytes
    assert first["alone"] == list(enumerate(first["bytes"][2]))
    assert first["not sent"] == 0


def test_torchs_own_class_tells_no_buckets(ranks: Ranks) -> None:
    def body(rank: int) -> list[Any]:
        wrapper = wrap(two_layers(), SPEC)
        step(wrapper, rank)
        told = wrapper.communication()
        return [told.buckets, told.traffic.inter_node_bytes, wrapper.plan, wrapper.calibrate()]

    assert ranks.run(2, body) == [[None] * 4] * 2


@BOTH
def test_the_first_cause_is_told_by_all(ranks: Ranks, spec: DdpSpec) -> None:
    """Also where it is the rank that keeps the store, and others wait for it inside backward."""
    kept: list[Wrapper] = []  # as a traceback keeps it; only the end of the process ends that

    def body(rank: int) -> str:
        wrapper = wrap(two_layers(), spec)
        kept.append(wrapper)
        step(wrapper, rank)
        try:
            if rank == 0:
                time.sleep(0.2)
                wrapper.abort("my disk is full")
            step(wrapper, rank)
        except RuntimeError as exc:
            if rank == 0:
                raise SystemExit(str(exc)) from exc  # at once, and its store with it
            try:
                wrapper.abort(f"RuntimeError: {exc}")
            except RuntimeError as cause:
                raise SystemExit(str(cause)) from cause
        return "nothing was raised"

    texts = [outcome.message for outcome in ranks.outcomes(2, body)]
    assert texts == ["rank 0: my disk is full"] * 2


def test_an_output_that_hides_its_tensors_is_refused(ranks: Ranks) -> None:
    class Box:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

    class Boxed(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return Box(super().forward(x))

    def body(rank: int) -> str:
        wrapper = wrap(Boxed(4, 2), SPEC)
        with pytest.raises(ModelError) as caught:
            wrapper(inputs(rank))
        return str(caught.value)

    for text in ranks.run(2, body):
        assert "the model returned Box, with no tensor to be seen in it" in text
        assert "return tensors" in text


def test_what_the_transport_says_is_made_short() -> None:
    closed = (
        "RuntimeError: [/__w/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed "
        "by peer [198.18.0.11]:1. This is typically caused by a remote worker crashing."
    )
    late = "RuntimeError: [/w/gloo/gloo/unbound_buffer.cc:84] Timed out waiting 6000ms for recv"
    said = "torch's own communication: "
    assert in_short(closed) == f"{said}Connection closed by peer [198.18.0.11]:1"
    assert in_short(late) == f"{said}Timed out waiting 6000ms for recv"
    assert in_short("ValueError: oh. no") == "ValueError: oh. no"
    assert [is_symptom(text) for text in (closed, late, "ValueError: oh")] == [True, False, False]
