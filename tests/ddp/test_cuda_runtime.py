"""What is asked of torch.cuda, on a GPU that is not there: what waits for what on its streams."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ddp.device import CudaRuntime, StreamLine

GPU = torch.device("cuda", 1)


class Stream:
    """`free_ms`: when its work is done."""

    def __init__(self) -> None:
        self.free_ms = 0.0

    def wait_stream(self, other: "Stream") -> None:
        self.free_ms = max(self.free_ms, other.free_ms)

    def wait_event(self, event: "Event") -> None:
        self.free_ms = max(self.free_ms, event.at_ms)


class Event:
    at_ms = -1.0

    def record(self, stream: Stream) -> None:
        self.at_ms = stream.free_ms

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def elapsed_time(self, later: "Event") -> float:
        return later.at_ms - self.at_ms


class FakeCuda:
    """Stands in for torch.cuda: work takes as long as a test says."""

    def __init__(self) -> None:
        self.current = Stream()

    def Stream(self, device: torch.device) -> Stream:  # noqa: N802
        assert device == GPU
        return Stream()

    def Event(self, *, enable_timing: bool) -> Event:  # noqa: N802
        assert enable_timing
        return Event()

    def current_stream(self, device: torch.device) -> Stream:
        assert device == GPU
        return self.current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def work(self, milliseconds: float) -> None:
        self.current.free_ms += milliseconds


def spans(cuda: FakeCuda, line: StreamLine, *works_ms: float) -> list[tuple[float, ...]]:
    """A bucket for each number, which takes so long; when it was ready, began and ended."""
    told = []
    for bucket, work_ms in enumerate(works_ms):
        with line.after(line.mark(), bucket) as span:
            cuda.work(work_ms)
        origin_ns = span._anchor.at_ns - round(span._anchor.event.at_ms * 1e6)  # type: ignore[attr-defined]
        told.append(tuple((each - origin_ns) / 1e6 for each in span.times(0)))
    return told


def line_on(cuda: Any) -> StreamLine:
    return StreamLine(CudaRuntime(GPU, cuda), 5.0, lambda: None)


def test_buckets_follow_their_gradients_and_one_another() -> None:
    cuda = FakeCuda()
    line = line_on(cuda)
    cuda.work(10)
    assert spans(cuda, line, 4, 6) == [(10, 10, 14), (10, 14, 20)]
    assert cuda.current.free_ms == 10  # the model does not wait for them


def test_a_bucket_waits_for_gradients_of_other_streams_too() -> None:
    cuda = FakeCuda()
    line = line_on(cuda)
    with cuda.stream(Stream()):
        cuda.work(30)
        line.gradient()
    cuda.work(10)
    line.gradient()
    assert spans(cuda, line, 4) == [(30, 30, 34)]
