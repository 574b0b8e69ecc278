"""What a page must say of a run besides its figures, so that nobody takes them for others."""

from collections.abc import Mapping
from typing import Any

from jobs.modelwords import compute_kind, micro_step_ms, scale_words


def notes(run: Mapping[str, Any]) -> list[str]:
    """Sentences from run.json: paced compute, a model to scale, more ranks than cores."""
    job, num_ranks, cores = run["job"], run["world_size"], run["host"]["cores"]
    made = []
    if compute_kind(job) == "paced":
        milliseconds = (micro_step_ms(job) or 0.0) * job["train"].get("accumulate", 1)
        made.append(f"Paced compute: a step computes for at least {milliseconds:,.6g} ms.")
    elif num_ranks > cores:
        made.append(f"{num_ranks} ranks share {cores} cores: their computing varies.")
    if words := scale_words(job):
        made.append(f"{words}.")
    return made
