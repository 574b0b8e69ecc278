"""How long stages take whose segments overlap, on links that may let a burst through.

Owns that arithmetic, for stages that are given by the bytes which each puts on each link. Which
stages there are is `ddp.cost`'s matter.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ddp.fabric import Link


@dataclass(frozen=True)
class Sums:
    """All stages added up: bytes by capacity, how long each is busy, and one segment's seconds."""

    links: Sequence[Link]
    totals: list[Any]
    busy_s: list[float]
    first_segment_s: float
    all_alphas_s: float
    alphas: "list[_Alphas]"

    @classmethod
    def of(
        cls, loads: Iterable[tuple[int, Sequence[float]]], links: Sequence[Link], segments: int
    ) -> "Sums":
        """`loads`: how many stages are alike, and the bytes that each puts on each capacity."""
        totals: list[Any] = [0] * len(links)
        alphas = [_Alphas() for _ in links]
        first_segment_s = all_alphas_s = 0.0
        for count, load in loads:
            totals = [total + count * stage for total, stage in zip(totals, load, strict=True)]
            alpha_s, bytes_s = _stage_s(load, links, segments)
            first_segment_s += count * bytes_s
            all_alphas_s += count * alpha_s
            for stage_bytes, own in zip(load, alphas, strict=True):
                if stage_bytes:
                    own.take(alpha_s, count)
        busy_s = [total / link.bytes_per_s for total, link in zip(totals, links, strict=True)]
        return cls(links, totals, busy_s, first_segment_s, all_alphas_s, alphas)

    @property
    def busiest(self) -> int:
        return self.busy_s.index(max(self.busy_s))

    def seconds(self, segments: int, burst_share: float = 1.0) -> float:
        """All segments. Of the busiest link's burst, `burst_share` is there when they begin."""
        own, busy_s = self.alphas[self.busiest], self.busy_s[self.busiest]
        outside_s = self.first_segment_s - busy_s / segments + self.all_alphas_s - own.sum_s
        following_s = busy_s * (segments - 1) / segments + own.largest_s
        flowing_s = busy_s / segments + max(own.sum_s, following_s)
        at_once_s = self._at_once_s(outside_s, flowing_s, segments, burst_share)
        seconds = outside_s + max(own.sum_s, flowing_s - at_once_s)
        return max(seconds, busy_s - at_once_s)  # a stage inside may outlast its bytes between

    def _at_once_s(
        self, outside_s: float, flowing_s: float, segments: int, burst_share: float
    ) -> float:
        """For how long the busiest link need not send, since its burst takes those bytes.

        What a burst has let through, the link's pauses make good: those between stages, and, where
        others were before, that between theirs and these.
        """
        link, own = self.links[self.busiest], self.alphas[self.busiest]
        busy_s, burst_s = self.busy_s[self.busiest], link.burst_bytes / link.bytes_per_s
        between_s = max(0.0, flowing_s - busy_s - own.largest_s)
        before_s = (1 - burst_share) * (max(0.0, outside_s) + own.largest_s)
        num_pauses = max(0, own.count * segments - 1)
        made_good_s = min(between_s, num_pauses * burst_s) + min(before_s, burst_s)
        return min(busy_s, burst_share * burst_s + made_good_s)


@dataclass
class _Alphas:
    """The fixed times of the stages that use one capacity."""

    count: int = 0
    sum_s: float = 0.0
    largest_s: float = 0.0

    def take(self, alpha_s: float, count: int) -> None:
        self.count += count
        self.sum_s += count * alpha_s
        self.largest_s = max(self.largest_s, alpha_s)


def _stage_s(load: Sequence[float], links: Sequence[Link], segments: int) -> tuple[float, float]:
    """The fixed time of a stage's slowest capacity, and that of a segment's bytes there."""
    times = (
        (link.alpha_s, stage_bytes / segments / link.bytes_per_s)
        for link, stage_bytes in zip(links, load, strict=True)
        if stage_bytes
    )
    return max(times, key=sum, default=(0.0, 0.0))
