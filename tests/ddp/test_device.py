"""The order of work on a device, on one that records it; and its times, on clocks of our own."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ddp import agreement, device, placing
from ddp.device import Anchor, HostLine, StreamLine, exposed_of
from ddp.errors import DdpError, PeerTimeout, TransportError, UsageError
from ddp.fabric import Fabric
from ddp.fingerprint import Fingerprints
from ddp.hooks import HookState
from ddp.parallel import DistributedDataParallel
from ddp.timing import BucketTiming, StepCommunication, Traffic
from tests.ddp.recorded_device import RecordedEvent, RecordedRuntime, use
from tests.ddp.samples import the_one_text

NODES = (0, 1, 0, 1)
COLLECTIVES = {
    "hierarchical": ["reduce_scatter inside", "all_reduce across", "all_gather inside"],
    "native": ["all_reduce everybody"],
}


def layers(rank: int) -> nn.Module:
    """Three parameters, of which two come in one length that four does not divide."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 1))
    for number, parameter in enumerate(model.parameters()):
        nn.init.constant_(parameter, rank * 10.0 + number + 1)
    return model


@pytest.mark.parametrize("algorithm", COLLECTIVES)
def test_each_bucket_follows_its_mark_and_is_there_before_its_status_is_read(
    ranks: Any, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    """Mark on one thread; on the other wait, reduce, synchronise: alike on all ranks."""

    def body(rank: int) -> tuple[list[str], list[float], list[Any]]:
        runtime = RecordedRuntime()
        use(monkeypatch, runtime)
        read = Fingerprints.read
        monkeypatch.setattr(
            Fingerprints, "read", lambda self: (runtime.say("read parameters"), read(self))
        )
        model = layers(rank)
        wrapped = DistributedDataParallel(
            model,
            algorithm=algorithm,
            fabric=Fabric(NODES),
            per_parameter=True,
            overlap=False,
            broadcast_buffers=False,
        )
        runtime.said.clear()
        wrapped(torch.full((1, 3), rank + 1.0)).sum().backward()
        said = list(runtime.said)
        seen = wrapped.communication()
        first = model.get_parameter("0.weight").grad
        assert first is not None
        assert wrapped.calibrate() is None
        wrapped.close()
        assert any("close everybody" in line for line in runtime.said)
        return said, first[0].tolist(), [seen.traffic, len(seen.buckets), len(seen.exposed)]

    outcomes = ranks.run(4, body)
    by_bucket = [
        "on its stream", "wait for the mark", "record", *COLLECTIVES[algorithm],
        "record", "is there", "record", "is there", "off its stream",
    ]  # fmt: skip
    for said, gradient, (traffic, num_buckets, num_exposed) in outcomes:
        communication = [line.partition(": ")[2] for line in said if line.startswith("comm")]
        # an anchor, and the parameters of all buckets: where the host waits for neither
        first = [*by_bucket[:1], "record", *by_bucket[1:3], "read parameters", *by_bucket[3:]]
        assert communication == [*first, *by_bucket, *by_bucket]
        assert said.index("training: record") < said.index("communication: wait for the mark")
        assert said.count("training: record") == 3
        assert gradient == [2.0 * (1 + 2 + 3 + 4) / 4] * 3
        assert (num_buckets, num_exposed) == (3, 2)  # the other: buckets for the next steps
        assert (traffic == Traffic(None, None)) == (algorithm == "native")


def test_a_bucket_goes_during_backward(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(rank: int) -> list[str]:
        runtime = RecordedRuntime()
        use(monkeypatch, runtime)
        wrapped = DistributedDataParallel(layers(rank), algorithm="native", per_parameter=True)
        runtime.said.clear()

        def before(*_: object) -> None:
            wrapped._reducer._thread.drain()
            runtime.say("backward goes on")

        wrapped.module.get_submodule("0").register_full_backward_pre_hook(before)
        wrapped(torch.ones(1, 3, requires_grad=True)).sum().backward()
        wrapped.close()
        return runtime.said

    for said in ranks.run(2, body):
        assert said.index("communication: all_reduce everybody") < said.index(
            "training: backward goes on"
        )


def test_ranks_fail_together_on_a_device_too(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(rank: int) -> str:
        use(monkeypatch, RecordedRuntime())
        model = layers(rank)
        wrapped = DistributedDataParallel(model, algorithm="hierarchical", fabric=Fabric((0, 1)))
        if rank:
            with torch.no_grad():
                model.get_parameter("0.weight").add_(1)
        try:
            for _ in range(2):
                wrapped(torch.ones(1, 3)).sum().backward()
        except DdpError as exc:
            return str(exc)
        return "nothing"

    text = the_one_text(ranks.run(2, body))
    assert "are not the same on all ranks" in text


def test_unequal_nodes_stop_all_ranks(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(rank: int) -> str:
        use(monkeypatch, RecordedRuntime())
        with pytest.raises(DdpError) as caught:
            DistributedDataParallel(layers(rank), fabric=Fabric((0, 0, 1)))
        return str(caught.value)

    assert "node 0 has 2 ranks and node 1 has 1" in the_one_text(ranks.run(3, body))


MS = 1_000_000


class Clocks:
    """The host's and the device's, `apart_ns` from one another."""

    def __init__(self) -> None:
        self.host_ns, self.apart_ns = 5_000 * MS, 4_321 * MS

    def monotonic_ns(self) -> int:
        return self.host_ns

    def device_ns(self) -> int:
        return self.host_ns + self.apart_ns


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(device, "monotonic_ns", clocks.monotonic_ns)
    return clocks


def test_device_times_are_told_on_the_clock_of_the_host(clocks: Clocks) -> None:
    line = StreamLine(RecordedRuntime(clocks.device_ns), 5.0, lambda: None)
    marks = []
    for _ in range(2):
        marks.append(line.mark())
        clocks.host_ns += 3 * MS
    spans = []
    for bucket, mark in enumerate(marks):
        with line.after(mark, bucket) as span:
            clocks.host_ns += 10 * MS
        spans.append(span)
        clocks.host_ns += 2 * MS
    start = 5_000 * MS
    assert spans[0].times(0) == (start, start + 6 * MS, start + 16 * MS)
    assert spans[1].times(0) == (start + 3 * MS, start + 18 * MS, start + 28 * MS)


def test_each_step_has_an_anchor_of_its_own(clocks: Clocks) -> None:
    line = StreamLine(RecordedRuntime(clocks.device_ns), 5.0, lambda: None)
    for _ in range(2):
        with line.after(line.mark(), 0) as span:
            clocks.host_ns += MS
        assert span.times(0)[2] == clocks.host_ns
        clocks.apart_ns += 7 * MS  # the clocks drift between steps


def test_an_anchor_is_the_middle_of_how_long_it_took(clocks: Clocks) -> None:
    class Slow(RecordedEvent):
        def synchronize(self) -> None:
            clocks.host_ns += 4 * MS

    runtime = RecordedRuntime()
    runtime.record = lambda: Slow(0)  # type: ignore[method-assign]
    anchor = Anchor.take(runtime)
    assert anchor.ns(RecordedEvent(-MS)) == 5_001 * MS


def test_a_wait_ends_where_the_device_never_does() -> None:
    for_ever = 1 << 40
    line = StreamLine(RecordedRuntime(polls=for_ever), 0.02, lambda: None)
    with pytest.raises(PeerTimeout, match=r"bucket 3, its status: not done after 0\.02 s"):
        line.settle("bucket 3, its status")
    stopped = StreamLine(RecordedRuntime(polls=for_ever), 60.0, lambda: "rank 1: gone")
    with (
        pytest.raises(TransportError, match="bucket 4: another rank has stopped"),
        stopped.after(RecordedEvent(0), 4),
    ):
        pass


def test_an_error_inside_a_bucket_is_not_waited_for() -> None:
    runtime = RecordedRuntime(polls=1 << 40)
    line = StreamLine(runtime, 60.0, lambda: None)
    with pytest.raises(KeyError), line.after(RecordedEvent(0), 1):
        raise KeyError
    assert runtime.said[-1] == "training: off its stream"


def timing(index: int, ready_ns: int, end_ns: int) -> BucketTiming:
    return BucketTiming(index, 8, ready_ns, ready_ns, end_ns)


def test_exposed_is_what_follows_the_last_gradient_of_each_reduction() -> None:
    buckets = [timing(0, 10, 25), timing(1, 20, 32), timing(0, 50, 70), timing(1, 45, 80)]
    assert exposed_of(buckets) == [(20, 32), (50, 80)]
    assert exposed_of([]) == []
    waits_of_the_host = StepCommunication(buckets, [(1, 99), (3, 9)], Traffic(1, 2), 7)
    line = StreamLine(RecordedRuntime(), 1.0, lambda: None)
    seen = line.seen(waits_of_the_host)
    # (3, 9), for buffers say, is before any bucket
    assert (seen.exposed, seen.gradients_ready_ns) == ([(3, 9), (20, 32), (50, 80)], 50)
    assert seen.traffic == Traffic(1, 2)
    assert HostLine().seen(waits_of_the_host) is waits_of_the_host


def test_a_module_is_on_one_device_that_can_reduce(monkeypatch: pytest.MonkeyPatch) -> None:
    model = layers(0)
    placing.check_one_device(model)
    model[1].to("meta")  # type: ignore[index]
    with pytest.raises(UsageError, match=r"'1\.weight' is on meta: only the CPU and NVIDIA GPUs"):
        placing.check_one_device(model)
    monkeypatch.setattr(placing, "KINDS", ("cpu", "meta"))
    with pytest.raises(UsageError, match=r"'1\.weight' is on meta and '0\.weight' on cpu: a rank"):
        placing.check_one_device(model)


def test_ranks_have_devices_of_one_kind() -> None:
    same = {"error": None, "options": {}, "tensors": []}
    with pytest.raises(UsageError, match="rank 1 has its module on cpu and rank 0 on cuda: move"):
        agreement.check_same([{**same, "device": "cuda"}, {**same, "device": "cpu"}])


def test_the_hook_for_torchs_class_refuses_a_gpu() -> None:
    state = object.__new__(HookState)
    state._dead = None
    bucket: Any = SimpleNamespace(buffer=lambda: torch.empty(2, device="meta"), index=lambda: 0)
    with pytest.raises(UsageError, match=r"a bucket on meta: .* use ddp\.DistributedDataParallel"):
        state.submit(bucket)


def test_options_that_say_nothing_on_a_gpu_are_refused() -> None:
    gpu = torch.device("cuda", 0)
    options: Any = SimpleNamespace(algorithm="native", segments=3)
    with pytest.raises(UsageError, match="segments=3 on cuda:0: NCCL cuts buckets itself"):
        placing.check_algorithm(gpu, options, registered=True)
    placing.check_algorithm(torch.device("cpu"), options, registered=True)
    own: Any = SimpleNamespace(algorithm="a Collective of the caller's", segments="auto")
    placing.check_algorithm(gpu, own, registered=False)
