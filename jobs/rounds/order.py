"""Who goes when where several jobs take turns, and how many steps without network each turn has.

Pure: the launcher and every rank reckon the same from it.
"""


def turn_order(round_number: int, num_jobs: int) -> list[int]:
    """Which job goes when in a round: each round another one begins."""
    return [(round_number + place) % num_jobs for place in range(num_jobs)]


def baseline_blocks(num_steps: int, rounds: int) -> list[int]:
    """Steps without network before the first round, then at the end of each turn of a job.

    The first half comes first, since a prediction needs it; the others are spread evenly.
    """
    first = num_steps // 2
    left = num_steps - first
    return [first, *(left * (k + 1) // rounds - left * k // rounds for k in range(rounds))]
