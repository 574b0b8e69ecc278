"""An example of an algorithm of one's own: `make run JOB=hier ALGORITHM=docs/own_algorithm.py:build`.

Direct exchange: every rank owns one chunk. All others send theirs to its owner, which adds them in
the order listed; then every owner hands the sum to everybody. Two stages and many messages: good
where messages are small and all ranks are near.
"""

from collections.abc import Iterator

from ddp import Fabric, Schedule, Transfer


def build(fabric: Fabric) -> Schedule:
    """Everybody sends everybody a chunk, and the sum of it back: direct exchange."""
    num_ranks = fabric.num_ranks

    def stages() -> Iterator[tuple[Transfer, ...]]:
        if num_ranks > 1:
            yield tuple(
                Transfer((owner + distance) % num_ranks, owner, chunk=owner, reduce=True)
                for distance in range(1, num_ranks)
                for owner in range(num_ranks)
            )
            yield tuple(
                Transfer(owner, rank, chunk=owner, reduce=False)
                for owner in range(num_ranks)
                for rank in range(num_ranks)
                if rank != owner
            )

    return Schedule(num_ranks, num_chunks=num_ranks, name="direct exchange", stages=stages)
