"""What people are told about who reduces a job's gradients, from the job as run.json keeps it.

Plain data in, words out: also for runs from before a job could name its wrapper.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ddp.algorithms import AUTO
from jobs.owncode import algorithm_name


def wrapper_of(job: Mapping[str, Any]) -> str:
    return str(job["ddp"].get("wrapper", "ddplab"))


def is_stock(job: Mapping[str, Any]) -> bool:
    """Whether it is torch's own class with nothing of ours, which tells nothing of buckets."""
    ddp = job["ddp"]
    return wrapper_of(job) == "torch" and (ddp["algorithm"] == "native" or bool(ddp.get("hook")))


def choice_words(plan: Mapping[str, Any] | None) -> str | None:
    """What auto chose, such as `hierarchical for 4 of 5 buckets, native for 1`; None: not auto."""
    if plan is None or plan.get("algorithm") != AUTO:
        return None
    chosen = Counter(bucket["algorithm"] for bucket in plan["buckets"])
    if len(chosen) == 1:
        return f"{next(iter(chosen))} for {'every bucket' if chosen.total() > 1 else 'its bucket'}"
    (first, most), *others = chosen.most_common()
    words = [f"{first} for {most} of {chosen.total()} buckets"]
    return ", ".join([*words, *(f"{name} for {num}" for name, num in others)])


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
