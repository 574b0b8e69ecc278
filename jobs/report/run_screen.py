"""The closing screen of a run: the step, where it goes, what the network cost, what was checked."""

from collections.abc import Mapping
from typing import Any

from cluster.units import format_rate
from jobs.compare.model import PricedRun, faster_rate
from jobs.figures import RunFigures, busiest
from jobs.report.parts_table import parts_table
from jobs.report.site_words import lab_option, place_options
from jobs.report.text import (
    BAD,
    GOOD,
    LAYOUTS,
    LOUD,
    Lines,
    count,
    labelled,
    layout,
    line,
    megabytes,
    milliseconds,
    number,
    paragraph,
    percent,
    round_to_sum,
    rounded_ms,
    significant,
)
from jobs.verdict import checks
from jobs.wrapperwords import choice_words

LABEL_WIDTH = 13
WORDS_WIDTH = {80: 41, 100: 48, 120: 58}
NEXT_WIDTH = 50
ALL_RUNS = "          make runs".ljust(NEXT_WIDTH) + "all runs so far"
WORTH_IT = 0.97  # of the step: a faster link that saves less is not offered
MOST_EQUAL_BYTES = 1.01  # nodes that send within 1 % of one another send alike


def closing_screen(
    run: Mapping[str, Any],
    figures: RunFigures,
    summary: Mapping[str, Any],
    prediction: Mapping[str, Any] | None,
    size_bytes: int,
    width: int,
) -> Lines:
    """Everything a run has to say. Without a measured step only the checks and the files."""
    lines: Lines = [line()]
    if figures.step is not None:
        lines += [*_step(run, figures), line(), *parts_table(summary, width)]
        lines += [*_phases(run, figures, width), line()]
        lines += _network(run, figures, summary, width)
        lines += _efficiency(figures, summary, width)
        lines += _predicted(prediction, summary, width)
    lines += _data_order(run, summary, width)
    lines += _checks(run, figures, summary, width)
    if summary["bottleneck"]:
        lines += [line(), *paragraph(f"Bottleneck: {summary['bottleneck']}", width, style="bold")]
    faster = _faster(run, figures, prediction, summary, width)
    return [*lines, *_next(run), *faster, line(ALL_RUNS), *files_line(run, size_bytes, width)]


def _step(run: Mapping[str, Any], figures: RunFigures) -> Lines:
    step = figures.step
    assert step is not None
    (low, high) = (number(value * 1e3, _decimals(step.mean)) for value in (step.p10, step.p90))
    rates = f"{significant(figures.samples_per_s or 0.0)} samples/s"
    if context := run["job"]["model"].get("context"):
        tokens = (figures.samples_per_s or 0.0) * context
        rates += f", {significant(tokens)} tokens/s"
    head = f"  STEP   {milliseconds(step.mean)}"
    return [
        line(head.ljust(34) + f"8 of 10 steps between {low} and {high}", "bold"),
        line(" " * 34 + f"{rates} over all ranks"),
    ]


def _decimals(value_s: float) -> int:
    return 0 if value_s >= 0.1 else 1


def _phases(run: Mapping[str, Any], figures: RunFigures, width: int) -> Lines:
    """The table of where the mean step goes; its numbers add up as they stand."""
    phase_s = figures.phase_s or {}
    rows = [
        ("computing", "forward", phase_s["forward"], "#"),
        ("", "backward", phase_s["backward"], "#"),
        ("", "optimizer", phase_s["optimizer"], "#"),
        *_waits(phase_s["comm_exposed"], figures.straggler_wait_s),
        ("other", "loading data", phase_s["data"], "#"),
        ("", "not explained", max(0.0, phase_s["other"]), "#"),
    ]
    values = [value for _, _, value, _ in rows]
    parts, total = rounded_ms(values)
    shares = round_to_sum(values, 100)
    title = f"  where the mean step goes, over {count(run['world_size'], 'rank')}"
    words = WORDS_WIDTH[layout(width)]
    lines = [line(f"{title.ljust(2 + LABEL_WIDTH + words)}{'ms':>8}{'share':>8}")]
    for (label, what, _, mark), part, share in zip(rows, parts, shares, strict=True):
        head = f"  {label.ljust(LABEL_WIDTH)}{what.ljust(words)}"
        bar = mark * _bar(share, max(shares), width)
        style = LOUD if mark == "@" else ""
        lines.append(line(f"{head}{part:>8}{f'{share} %':>8}  {bar}", style))
    whole = " " * (2 + LABEL_WIDTH + words) + f"{total:>8}{'100 %':>8}"
    return [*lines, line(whole), *_slowest(figures, width)]


def _waits(exposed_s: float, straggler_s: float | None) -> list[tuple[str, str, float, str]]:
    """What of it is waiting for a slower rank is not always told."""
    if straggler_s is None:
        return [("WAITING", "for other ranks   (exposed communication)", exposed_s, "@")]
    straggler_s = min(straggler_s, exposed_s)
    return [
        ("WAITING", "for the network   (exposed communication)", exposed_s - straggler_s, "@"),
        ("", "for a slower rank (straggler wait)", straggler_s, "@"),
    ]


def _bar(share: int, largest: int, width: int) -> int:
    """A quarter of a cell per percent where there is room; less, so that the largest fits."""
    room = layout(width) - (2 + LABEL_WIDTH + WORDS_WIDTH[layout(width)] + 8 + 8 + 2)
    scale = min(0.25, room / largest) if largest else 0.25
    return max(1, round(share * scale)) if share else 0


def _slowest(figures: RunFigures, width: int) -> Lines:
    """Why the total is not STEP, where the two differ on the screen."""
    assert figures.step is not None
    mean_s = sum((figures.phase_s or {}).values())
    if milliseconds(mean_s) == milliseconds(figures.step.mean):
        return []
    slowest = milliseconds(figures.step.mean)
    text = f"(mean over ranks; STEP takes the slowest rank of each step: {slowest})"
    return labelled("", text, width, LABEL_WIDTH)


def _network(
    run: Mapping[str, Any], figures: RunFigures, summary: Mapping[str, Any], width: int
) -> Lines:
    if not figures.communicated:
        return labelled("network", "nothing was sent", width, LABEL_WIDTH)
    chosen = choice_words(run.get("plan"))
    lines = labelled("auto", f"chose {chosen}", width, LABEL_WIDTH) if chosen else []
    lines += labelled("network", _lasted(figures), width, LABEL_WIDTH)
    if run["nnodes"] > 1:
        lines += labelled("", _sent(run, figures, summary), width, LABEL_WIDTH)
    return lines


def _lasted(figures: RunFigures) -> str:
    if figures.comm_busy_s is None or figures.hidden_s is None:
        return "how long communication lasted is not known: torch's own class does not tell"
    busy_s, hidden_s = figures.comm_busy_s, figures.hidden_s
    parts, _ = rounded_ms([hidden_s, busy_s - hidden_s])
    return (
        f"communication lasted {rounded_ms([busy_s])[1]} ms a step: {parts[0]} ms hid behind "
        f"computing, {parts[1]} ms did not"
    )


def _sent(run: Mapping[str, Any], figures: RunFigures, summary: Mapping[str, Any]) -> str:
    sent, bound = summary["inter_node_bytes_per_step"], summary["inter_node_bytes_bound"]
    nodes: list[float] = [value for value in figures.inter_node_bytes if value is not None]
    if sent is None:
        counted = busiest(figures.nic_tx_bytes)
        if counted is None:
            return "what each node sent is not known"
        text = f"the busiest node's NIC sent {megabytes(counted)} a step, headers included"
        if run["job"]["ddp"].get("hook"):  # it may send less than whole gradients
            return f"{text}; what a hook sends is not counted"
    else:
        alike = max(nodes) <= MOST_EQUAL_BYTES * min(nodes)
        who = "each node" if alike else "the busiest node"
        text = f"{who} sent {megabytes(sent)} a step"
    return f"{text}; {megabytes(bound)} is the least any algorithm can send"


def _efficiency(figures: RunFigures, summary: Mapping[str, Any], width: int) -> Lines:
    if figures.efficiency is not None and summary["communication_efficiency_ratio"] is None:
        return labelled("efficiency", "given for each part: the links were changed", width)
    if figures.efficiency_withheld:
        return labelled("efficiency", f"not given: {figures.efficiency_withheld}", width)
    if figures.efficiency is None or figures.baseline is None or figures.step is None:
        return labelled("efficiency", "not known: no steps without network were measured", width)
    text = (
        f"{percent(figures.efficiency)} = median step without network "
        f"{milliseconds(figures.baseline.median)} (n = {figures.baseline.n}) / median step "
        f"{milliseconds(figures.step.median)}   (100 %: the network costs nothing)"
    )
    return labelled("efficiency", text, width)


def _predicted(
    prediction: Mapping[str, Any] | None,
    summary: Mapping[str, Any],
    width: int,
) -> Lines:
    seconds, error = summary["predicted"]["step_seconds"], summary["predicted"]["error_ratio"]
    changed = summary["link"]["proof"] == "stale"
    if seconds is None or error is None:
        reason = "the links were not measured" if prediction else "the run ended before it"
        reason = (prediction or {}).get("reason") or reason
        if seconds is not None and changed:
            reason = "the links it was made for were changed before the first step"
        return labelled("predicted", f"nothing: {reason}", width)
    side = "under" if error < 0 else "over"
    text = (
        f"{milliseconds(seconds)} from the measured link, {percent(abs(error))} {side} the "
        f"median step{' of the first part' if changed else ''}"
    )
    return labelled("predicted", text, width)


def _data_order(run: Mapping[str, Any], summary: Mapping[str, Any], width: int) -> Lines:
    """Only where there was more than one pass: then it matters whether they repeat one another."""
    order = summary["data_order"]
    if order["repeats"] is None:
        return []
    how = "each in an order of its own"
    if order["repeats"]:
        how = "each in the same order"
        how += "" if run["job"]["data"].get("set_epoch", True) else ": set_epoch was not called"
    return labelled("data", f"{order['epochs']:,} passes over the text, {how}", width)


def _checks(
    run: Mapping[str, Any], figures: RunFigures, summary: Mapping[str, Any], width: int
) -> Lines:
    results = checks(figures, run, summary)
    good = all(check.good for check in results)
    text = "; ".join(check.text for check in results)
    return labelled("checks", text, width, LABEL_WIDTH, GOOD if good else BAD)


def _next(run: Mapping[str, Any]) -> Lines:
    if _elsewhere(run):
        return []
    other = "hier" if run["job"]["ddp"]["algorithm"] != "hierarchical" else "ring"
    command = f"  next    make run JOB={other}{place_options(run)}"
    return [line(f"{command}  ".ljust(NEXT_WIDTH) + "another way to reduce")]


def _elsewhere(run: Mapping[str, Any]) -> bool:
    """Whether somebody else started the ranks, and said where the files go."""
    return bool(run["lab"]["backend"] == "torchrun")


def _faster(
    run: Mapping[str, Any],
    figures: RunFigures,
    prediction: Mapping[str, Any] | None,
    summary: Mapping[str, Any],
    width: int,
) -> Lines:
    """What a faster link would bring; nothing where that is little, or the links were changed, or
    nobody can change them."""
    known = summary["link"]["proof"] == "probed" and run["lab"]["underlay"] is not None
    priced = PricedRun.of(run, prediction) if known else None
    rate = faster_rate(priced.limits) if priced else None
    exposed_s = priced.exposed_s_at(rate) if priced and rate else None
    if priced is None or exposed_s is None or figures.step is None:
        return []
    step_s = priced.compute.step_s + exposed_s
    if step_s > WORTH_IT * figures.step.median:
        return []
    command = f"          make link NODE=all RATE={format_rate(rate)}{lab_option(run)}"
    words = f"predicted step: {milliseconds(step_s)}"
    words = words if layout(width) == LAYOUTS[0] else f"a faster link ({words})"
    return [line(f"{command}  ".ljust(NEXT_WIDTH) + words)]


def files_line(run: Mapping[str, Any], size_bytes: int, width: int) -> Lines:
    run_id, size = run["run_id"], f"({significant(size_bytes / 1e6, 2)} MB)"
    folder = f"{run_id}, as --out says" if _elsewhere(run) else f"runs/latest = runs/{run_id}"
    text = f"{folder} {size}"
    return labelled("files", text, width, label_width=8)
