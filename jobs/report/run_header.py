"""What a run says before and while it starts: the job, the lab, how long it will take."""

from collections.abc import Mapping, Sequence
from typing import Any

from jobs.modelwords import (
    micro_step_ms,
    model_words,
    num_reductions,
    scale_words,
    sleeps_only,
)
from jobs.report.text import Lines, count, line, megabytes, number, paragraph
from jobs.wrapperwords import reducer_words

SMALL_BYTES = 100_000
START_S = 5.0  # importing torch in every node, meeting, calibrating


def run_header(run: Mapping[str, Any], where: str, algorithm_summary: str, width: int) -> Lines:
    """The job of run.json, where it runs, and an estimate of the time where computing is paced."""
    job = run["job"]
    batch = job["data"]["batch_size"] * job["train"]["accumulate"]
    text = (
        f'Job "{job["name"]}": {model_words(job["model"])}; '
        f"batch {batch} per rank, {batch * run['world_size']} in all"
    )
    lines = paragraph(text, width)
    lines += paragraph(reducer_words(job, algorithm_summary), width)
    for sentence in [*conditions(run), *unusual_steps(job)]:
        lines += paragraph(sentence, width)
    estimate = estimate_s(run)
    about = f" About {_round_up(estimate)} s." if estimate else ""
    return [*lines, *paragraph(f"{where}.{about}", width), line()]


def _cores(run: Mapping[str, Any]) -> int:
    return int(run.get("cores") or run["host"]["cores"])


def conditions(run: Mapping[str, Any]) -> Sequence[str]:
    """What a reader must know about the computing before believing its times."""
    job, cores = run["job"], _cores(run)
    sentences = []
    paced_ms = micro_step_ms(job)
    if paced_ms is not None:
        least = f"{number(paced_ms * job['train']['accumulate'])} ms"
        how = (
            f"nothing but sleep, {least} a step"
            if sleeps_only(job)
            else (f"a step computes for at least {least}")
        )
        sentences.append(f"Computing is paced: {how}.")
    if scale := scale_words(job):
        sentences.append(f"{scale}.")
    if run["world_size"] > cores:
        unpaced = (
            "" if paced_ms is not None else " Its times vary and are not those of ranks with cores."
        )
        sentences.append(
            f"Ranks outnumber cores: {run['world_size']} ranks on {count(cores, 'core')}.{unpaced}"
        )
    if job["placement"] != "contiguous":
        sentences.append(f"Placement of ranks on nodes: {job['placement']}.")
    if job["ddp"].get("shared_memory") and _limits_insides(run):
        sentences.append(
            "The inside of a node has a rate: ranks there talk over TCP, not through shared memory."
        )
    if job["inject"]:
        inject = job["inject"]
        who = "every rank" if inject["rank"] is None else f"rank {inject['rank']}"
        sentences.append(
            f"A delay is put in on purpose: {inject['ms']:g} ms, {inject['phase']}, {who}."
        )
    return sentences


def _limits_insides(run: Mapping[str, Any]) -> bool:
    nodes = run.get("lab", {}).get("nodes", ())
    return any(node.get("intra_rate_bits_per_s") for node in nodes)


def unusual_steps(job: Mapping[str, Any]) -> Sequence[str]:
    """What is unusual in how its steps communicate."""
    sentences = []
    if job["ddp"].get("sync") == "barrier":
        sentences.append("No gradient is reduced: ranks only meet at a barrier after backward.")
    if (times := num_reductions(job)) > 1:
        sentences.append(f"Each of the {times} micro-steps of a step is reduced by itself.")
    if job["ddp"].get("lesson_deadlock"):
        sentences.append("A gradient that never comes is waited for, on purpose.")
    return sentences


def estimate_s(run: Mapping[str, Any]) -> float | None:
    """Seconds of the whole run, where pace says how long a step computes; else None.

    Communication is not in it: how long it takes is what the run finds out.
    """
    job = run["job"]
    paced_ms = micro_step_ms(job)
    if paced_ms is None:
        return None
    steps = job["train"]["steps"] + job["train"]["warmup_steps"] + job["baseline_steps"]
    return START_S + paced_ms / 1e3 * int(steps * job["train"]["accumulate"])


def start_words(header: Mapping[str, Any], checksums: Sequence[str | None]) -> str:
    """The line of the phase `start`: the model's size, and whether all ranks start alike."""
    alike = sum(1 for each in checksums if each == checksums[0])
    parameters, num_bytes = header["model_parameters"], header["gradient_bytes"]
    small = num_bytes < SMALL_BYTES
    many = f"{parameters:,}" if small else f"{parameters / 1e6:.2f} M"
    size = f"{num_bytes:,} bytes" if small else megabytes(num_bytes)
    ranks = count(len(checksums), "rank")
    return f"{many} parameters = {size} of gradients a step; the same start on {alike} of {ranks}"


def _round_up(value: float) -> int:
    return int(-(-value // 5) * 5)
