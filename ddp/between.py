"""Between two steps: what ranks exchange there is exposed, and fatal where it fails."""

from collections.abc import Iterator
from contextlib import contextmanager

from ddp.errors import TransportError
from ddp.reducer import Reducer


@contextmanager
def between_steps(reducer: Reducer, what: str) -> Iterator[None]:
    """Inside, a TransportError stops all ranks. Raises ReductionFailed."""
    failure: str | None = None
    with reducer.exposed():
        try:
            yield
        except TransportError as exc:
            failure = str(exc)
    if failure is not None:
        raise reducer.fail(f"{what}, between two steps: {failure}")
