"""What `scale` says before it starts and when it has ended; the table itself is `scale_table`."""

from collections.abc import Mapping, Sequence
from shlex import quote

from cluster.backends import Chosen
from cluster.site import Site
from cluster.units import parse_rate
from jobs.modelwords import compute_kind, micro_step_ms, model_words
from jobs.report.lab_screens import backend_words, making_s, measuring_s
from jobs.report.lab_words import rate_words
from jobs.report.run_header import START_S, conditions
from jobs.report.scale_table import legend, scale_table
from jobs.report.site_words import RAY, site_words
from jobs.report.text import (
    Lines,
    count,
    labelled,
    layout,
    line,
    milliseconds,
    paragraph,
    percent,
)
from jobs.scale.plan import ONE_RANK, ScalePlan
from jobs.scale.rows import ScaleRow
from jobs.scale.sizes import Turns

FAST, SLOW = "1gbit", "200mbit"
ALIKE = 0.01  # efficiencies nearer than this are told as equal


def scale_header(
    plan: ScalePlan, where: Chosen | Site, turns: Turns, cores: int, width: int
) -> Lines:
    """What is going to be run, how, and about how long it takes."""
    sizes = ", ".join(str(size) for size in plan.sizes if size != ONE_RANK)
    names = ", ".join(job.name for job in plan.jobs)
    text = (
        f"{plan.scaling.capitalize()} scaling of {names}: {sizes or 'one rank'} (nodes x ranks), "
    )
    lines = paragraph(f"{text}each against the same job on one rank alone (1x1).", width)
    for sentence in [*_batches(plan), *_conditions(plan), *_crowded(plan, cores)]:
        lines += paragraph(sentence, width)
    backend = where.backend.name if isinstance(where, Chosen) else where.backend
    about_s = estimate_s(plan, turns.rounds, turns.turn_steps, backend)
    about = f" About {_round_up(about_s)} s, and what the network adds." if about_s else ""
    lab = (
        f"{_places_words(plan, where)} "
        f"{count(turns.rounds, 'round')} there; in each the jobs take turns, "
        f"{count(turns.turn_steps, 'counted step')} a turn.{about}"
    )
    return [*lines, *paragraph(lab, width), line()]


def _places_words(plan: ScalePlan, where: Chosen | Site) -> str:
    if not isinstance(where, Chosen):
        return (
            f"{site_words(where)}. Each size takes so many of these nodes; nothing is brought up "
            "or taken down."
        )
    rate = rate_words(plan.cluster.links.inter_node.rate_bits_per_s)
    return (
        f"Each size is a lab of its own, {rate} between its nodes: made, measured, taken down "
        f"({backend_words(where)})."
    )


def estimate_s(
    plan: ScalePlan, rounds: int, turn_steps: int, backend: str = "netns"
) -> float | None:
    """Seconds of everything, where pace says how long a step computes; else None.

    Communication is not in it: how long it takes is what is to be found out.
    """
    total_s = 0.0
    for size in plan.sizes:
        lab = plan.cluster_at(size)
        total_s += making_s(backend, lab.nodes) + measuring_s(lab) + START_S
        for job in plan.jobs_at(size):
            paced_ms = micro_step_ms(job.model_dump(mode="json"))
            if paced_ms is None:
                return None
            steps = rounds * (turn_steps + 1) + job.train.warmup_steps + job.baseline_steps
            total_s += steps * job.train.accumulate * paced_ms / 1e3
    return total_s


def _round_up(value: float) -> int:
    return int(-(-value // 5) * 5)


def _batches(plan: ScalePlan) -> list[str]:
    models = dict.fromkeys(model_words(job.model_dump(mode="json")["model"]) for job in plan.jobs)
    per_rank = {job.data.batch_size * job.train.accumulate for job in plan.jobs}
    batch = " or ".join(count(each, "sample") for each in sorted(per_rank))
    shared = f"a step trains {batch} at every size; ranks share them equally"
    kept = f"every rank trains {batch} a step, so N ranks train N times as many"
    return [f"{' or '.join(models)}; {shared if plan.strong else kept}."]


def _conditions(plan: ScalePlan) -> list[str]:
    """What holds for one rank alone; how a share of it computes comes after it."""
    alone = {"world_size": 1, "host": {"cores": 1}}
    found = [conditions({**alone, "job": job.model_dump(mode="json")}) for job in plan.jobs]
    sentences = list(dict.fromkeys(sentence for each in found for sentence in each))
    paced = any(sentence.startswith("Computing is paced") for sentence in sentences)
    if plan.strong and paced:
        sentences.append("That is of one rank alone: each of N ranks computes 1/N of it.")
    return sentences


def _crowded(plan: ScalePlan, cores: int) -> list[str]:
    real = any(compute_kind(job.model_dump(mode="json")) == "real" for job in plan.jobs)
    sizes = [size for size in plan.sizes if size.num_ranks > cores]
    if not real or not sizes:
        return []
    named = ", ".join(f"{size} ({size.num_ranks})" for size in sizes)
    return [
        f"Ranks outnumber cores at {named}, and there are {count(cores, 'core')}: times there vary "
        "and are not those of ranks with cores."
    ]


def closing_screen(plan: ScalePlan, rows: Sequence[ScaleRow], width: int) -> Lines:
    """The table, and what it means."""
    lines = [line(), *scale_table(rows, width), line(), *legend(rows, plan.strong, width)]
    lines += labelled("checks", _checks(rows), width, 16)
    words = conclusion(rows)
    return [*lines, line(), *paragraph(words, width, style="bold")] if words else lines


def _checks(rows: Sequence[ScaleRow]) -> str:
    off = [(abs(row.off_by), row) for row in rows if row.off_by is not None]
    if not off:
        return "there is no prediction to compare with"
    worst, row = max(off, key=lambda each: each[0])
    where = f"{row.job} at {row.size}"
    return f"predicted and measured efficiency differ by at most {worst * 100:.1f} points ({where})"


def conclusion(rows: Sequence[ScaleRow]) -> str | None:
    """What the largest size keeps, job by job, and what takes most of the rest."""
    if not rows:
        return None
    largest = max((row.size for row in rows), key=lambda size: size.num_ranks)
    there = [row for row in rows if row.size == largest and row.efficiency is not None]
    if not there or largest == ONE_RANK:
        return None
    there.sort(key=lambda row: -(row.efficiency or 0.0))
    kept = ", ".join(f"{row.job} {percent(row.efficiency or 0.0)}" for row in there)
    who = there[-1].job if len(there) > 1 else "It"
    return f"Efficiency at {largest}: {kept}. {_most_lost(there[-1], who)}".rstrip()


def _most_lost(row: ScaleRow, who: str) -> str:
    lost = row.lost
    if lost is None or row.efficiency is None or row.efficiency > 1 - ALIKE:
        return ""
    parts = {
        "waiting for the network": lost.network_s,
        "waiting for a slower rank": lost.slower_rank_s,
        "contention: ranks that share cores and memory": lost.contention_s,
        "none of the parts that are measured": lost.other_s,
    }
    worst = max(parts, key=lambda words: parts[words])
    return (
        f"{who} loses {milliseconds(lost.total_s)} a step there, "
        f"{milliseconds(parts[worst])} of them to {worst}."
    )


def next_lines(plan: ScalePlan, typed: Mapping[str, str], width: int) -> Lines:
    """The command that has ended well, with one change a line; `typed` are its variables."""
    fast = plan.cluster.links.inter_node.rate_bits_per_s == parse_rate(FAST)
    changes = {"RATE": SLOW if fast else FAST, "SCALING": "weak" if plan.strong else "strong"}
    if typed.get("BACKEND") == RAY:
        del changes["RATE"]
    lines: Lines = []
    for name, value in changes.items():
        label = "" if lines else "next"
        variables = {**typed, name: value}
        words = [f"{name}={_quoted(value)}" for name, value in variables.items()]
        lines += _command(label, ["make", "scale", *words], width)
    return lines


def _quoted(value: str) -> str:
    if quote(value) == value or set('"$`\\!') & set(value):
        return quote(value)
    return f'"{value}"'


def _command(label: str, words: Sequence[str], width: int) -> Lines:
    """Lines that a shell reads as one command, also when they are copied."""
    room = layout(width) - len(f"  {label:8} \\")
    texts = [words[0]]
    for word in words[1:]:
        if len(f"{texts[-1]} {word}") <= room:
            texts[-1] += f" {word}"
        else:
            texts.append(word)
    heads = [f"  {label:8}", *[" " * 10] * (len(texts) - 1)]
    ends = [*[" \\"] * (len(texts) - 1), ""]
    return [line(f"{head}{text}{end}") for head, text, end in zip(heads, texts, ends, strict=True)]


def files_lines(folder: str, width: int) -> Lines:
    text = f"runs/{folder}: scale.csv, scale.json; each run has its own folder: make runs"
    return labelled("files", text, width, label_width=8)
