"""How ranks are named in a sentence."""

from collections.abc import Sequence
from itertools import pairwise


def ranks_words(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 1, 3`, or `ranks 0 to 3`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    in_a_row = len(ranks) > 2 and all(second == first + 1 for first, second in pairwise(ranks))
    words = f"{ranks[0]} to {ranks[-1]}" if in_a_row else ", ".join(map(str, ranks))
    return f"ranks {words}"
