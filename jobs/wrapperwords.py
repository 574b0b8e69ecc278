"""What people are told about who reduces a job's gradients, from the job as run.json keeps it.

Plain data in, words out: also for runs from before a job could name its wrapper.
"""

from collections.abc import Mapping
from typing import Any


def wrapper_of(job: Mapping[str, Any]) -> str:
    return str(job["ddp"].get("wrapper", "ddplab"))


def is_stock(job: Mapping[str, Any]) -> bool:
    """Whether it is torch's own class with its own all-reduce, which tells nothing of buckets."""
    return wrapper_of(job) == "torch" and job["ddp"]["algorithm"] == "native"


def reducer_words(job: Mapping[str, Any], algorithm_summary: str) -> str:
    """Such as `hierarchical: Add up inside each node, ...`."""
    algorithm = job["ddp"]["algorithm"]
    if is_stock(job):
        return "torch's DistributedDataParallel as it is, with its own all-reduce."
    words = f"{algorithm}: {algorithm_summary}"
    if wrapper_of(job) == "torch":
        return f"torch's DistributedDataParallel, with our hook. {words}"
    return words
