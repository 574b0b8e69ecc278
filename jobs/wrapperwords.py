"""What people are told about who reduces a job's gradients, from the job as run.json keeps it.

Plain data in, words out: also for runs from before a job could name its wrapper.
"""

from collections.abc import Mapping
from typing import Any

from jobs.owncode import algorithm_name


def wrapper_of(job: Mapping[str, Any]) -> str:
    return str(job["ddp"].get("wrapper", "ddplab"))


def is_stock(job: Mapping[str, Any]) -> bool:
    """Whether it is torch's own class with nothing of ours, which tells nothing of buckets."""
    ddp = job["ddp"]
    return wrapper_of(job) == "torch" and (ddp["algorithm"] == "native" or bool(ddp.get("hook")))


def reducer_words(job: Mapping[str, Any], algorithm_summary: str) -> str:
    """Such as `hierarchical: Add up inside each node, ...`."""
    hook = job["ddp"].get("hook")
    if is_stock(job) and not hook:
        return "torch's DistributedDataParallel as it is, with its own all-reduce."
    words = f"{algorithm_name(job['ddp'])}: {algorithm_summary}"
    if wrapper_of(job) == "torch":
        whose = "a" if hook else "our"
        return f"torch's DistributedDataParallel, with {whose} hook. {words}"
    return words
