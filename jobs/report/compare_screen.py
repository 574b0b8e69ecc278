"""The closing screen of a comparison: the table, what its words mean, checks, and what follows."""

import math
from collections.abc import Sequence

from jobs.compare.comparison import BLOCK_STEPS, LOSS_TOLERANCE, Comparison, Row
from jobs.compare.gate import GateResult
from jobs.compare.rules import job_differences
from jobs.compare.stats import Estimate
from jobs.report.compare_words import sentences
from jobs.report.site_words import place_options
from jobs.report.table import Column, table
from jobs.report.text import (
    BAD,
    GOOD,
    QUIET,
    Lines,
    count,
    labelled,
    layout,
    line,
    number,
    paragraph,
    percent,
    significant,
)
from jobs.spec import catalog, load_job
from jobs.spread import Spread
from jobs.wrapperwords import choice_words, is_stock

BADLY_PLACED = "ring-interleaved"
LABEL_WIDTH = 13
AT_MOST_WIDTH = 100
VERDICTS = {
    "within": "within the limit",
    "unsure": "more than the limit, but so little that it may be noise",
    "slower": "MORE than the limit",
}


def comparison_table(comparison: Comparison, width: int) -> Lines:
    """A row for each job, the fastest first, and what computing takes without network last."""
    base = comparison.base
    columns = [
        Column(("job",), right=False, cut=10),
        Column(("STEP", "ms")),
        Column(("8 of 10", "steps, ms"), from_width=100),
        Column(("waits for", "network, ms")),
        Column(("a node sends", "MB a step")),
        Column(("times as fast", f"as {base}")),
        Column(("at", "most"), from_width=AT_MOST_WIDTH),
        Column(("effi-", "ciency")),
        Column(("last", "loss"), from_width=120),
    ]
    asked_nic = any(row.sent_bytes and row.sent_bytes[1] for row in comparison.rows)
    rows = [_cells(row, base, asked_nic) for row in comparison.rows]
    rows += [_no_network(name, steps, asked_nic) for name, steps in comparison.no_network.items()]
    lines = [line(text) for text in table(columns, rows, width)]
    for each in lines[-len(comparison.no_network) :] if comparison.no_network else ():
        each.stylize(QUIET)
    return lines


def _cells(row: Row, base: str, asked_nic: bool) -> list[str]:
    it = row.it
    efficiency = it.figures.efficiency
    loss = it.summary["loss_last"]
    return [
        it.label,
        _ms(it.step.mean, it.step.mean),
        _range(it.step),
        _wait(row),
        _sent(row, asked_nic),
        "1" if it.label == base else times(row.speed_up),
        "-" if row.at_most is None else number(row.at_most, 2),
        "-" if efficiency is None else percent(efficiency),
        "-" if loss is None else number(loss, 3),
    ]


def _wait(row: Row) -> str:
    """With a sign where waiting for slower ranks cannot be told apart."""
    figures, step_s = row.it.figures, row.it.step.mean
    if figures.network_wait_s is not None:
        return _ms(figures.network_wait_s, step_s)
    return "-" if figures.exposed_s is None else f"< {_ms(figures.exposed_s, step_s)}"


def _sent(row: Row, asked_nic: bool) -> str:
    """With a star where a NIC had to be asked; the digits of all rows stand below one another."""
    if row.sent_bytes is None:
        return "-"
    num_bytes, by_nic = row.sent_bytes
    return significant(num_bytes / 1e6) + (" *" if by_nic else "  " if asked_nic else "")


def _no_network(name: str, steps: Spread, asked_nic: bool) -> list[str]:
    sent = "0  " if asked_nic else "0"
    return [name, _ms(steps.mean, steps.mean), _range(steps), "0", sent, "", "", "100 %", ""]


def times(ratio: Estimate) -> str:
    """`1.25 +- 0.03`; what noise leaves open is rounded up."""
    if ratio.low is None or ratio.high is None:
        return f"{number(ratio.value, 2)} +- ?"
    half = max(ratio.high - ratio.value, ratio.value - ratio.low)
    return f"{number(ratio.value, 2)} +- {number(math.ceil(half * 100 - 1e-9) / 100, 2)}"


def _ms(value_s: float, step_s: float) -> str:
    return number(value_s * 1e3, 0 if step_s >= 0.1 else 1)


def _range(steps: Spread) -> str:
    return f"{_ms(steps.p10, steps.mean)} - {_ms(steps.p90, steps.mean)}"


def legend(comparison: Comparison, width: int) -> Lines:
    """What the words of the table mean."""
    base = comparison.base
    steps = {row.it.step.n for row in comparison.rows}
    num = count(steps.pop(), "step") if len(steps) == 1 else "all counted steps"
    entries = {
        "STEP": f"mean of {num}, each as long as its slowest rank took",
        "no network": "the same computing with nothing sent: the goal, not a way to train",
    }
    if layout(width) >= AT_MOST_WIDTH:
        entries["at most"] = (
            f"{base}'s step / this job's step if, from the first gradients on, it filled the link "
            "without a pause" + _withheld(_bounds(comparison)) + _untold(comparison)
        )
    entries["efficiency"] = _efficiency_words(comparison)
    entries["+-"] = _interval_words(comparison)
    if any(row.it.figures.network_wait_s is None for row in comparison.rows):
        entries["<"] = "waiting for slower ranks is in it, which torch's own class does not tell"
    if any(row.sent_bytes and row.sent_bytes[1] for row in comparison.rows):
        entries["*"] = "counted by the node's NIC, headers included: its payload is not known"
    for row in comparison.rows:
        if chosen := choice_words(row.it.run.get("plan")):
            entries[row.it.label] = f"auto chose {chosen}"
    lines: Lines = []
    for label, text in entries.items():
        lines += labelled(label, text, width, LABEL_WIDTH, QUIET)
    return lines


def _bounds(comparison: Comparison) -> Sequence[float | None]:
    return [row.at_most for row in comparison.rows if not is_stock(row.it.run["job"])]


def _untold(comparison: Comparison) -> str:
    """Why torch's own class has no bound, where it is among the jobs."""
    stock = any(is_stock(row.it.run["job"]) for row in comparison.rows)
    return "; -: torch's own class does not tell how it reduces" if stock else ""


def _efficiency_words(comparison: Comparison) -> str:
    given = [row.it.figures.efficiency for row in comparison.rows]
    return "median step without network / median step" + _withheld(given)


def _withheld(figures: Sequence[float | None]) -> str:
    """Why one is not given, where that is so."""
    missing = any(figure is None for figure in figures)
    return "; -: links not measured, or steps without network that vary too much" if missing else ""


def _interval_words(comparison: Comparison) -> str:
    rounds = min(len(row.it.rounds) for row in comparison.rows)
    if rounds < 2:
        return "not known: several rounds would show the noise"
    if comparison.together:
        return f"covers the true ratio in 95 of 100 cases (bootstrap over the {rounds} rounds)"
    return (
        f"covers 95 % of the noise within the runs (bootstrap over {BLOCK_STEPS} steps at a time); "
        "they did not take turns, so what changed on the machine in between is in the ratio as well"
    )


def checks(comparison: Comparison, width: int) -> Lines:
    """Parameters, losses, bits; in a loud colour where one does not hold."""
    if comparison.faults:
        return labelled("checks", "; ".join(comparison.faults), width, LABEL_WIDTH, BAD)
    text = " ".join([_replicas(comparison), *_loss_words(comparison)])
    return labelled("checks", text, width, LABEL_WIDTH, GOOD)


def _replicas(comparison: Comparison) -> str:
    alone = [row.it.label for row in comparison.rows if not row.it.trains_together]
    ranks = {row.it.run["world_size"] for row in comparison.rows}
    who = f"all {ranks.pop()} ranks" if len(ranks) == 1 else "all ranks"
    but = f" ({', '.join(alone)}: each rank its own, as it is meant to)" if alone else ""
    return f"within each job {who} hold equal parameters{but}."


def _loss_words(comparison: Comparison) -> list[str]:
    losses = comparison.losses
    if losses.apart is None:
        return []
    shown = {label: number(loss, 3) for label, loss in losses.last.items()}
    alike = len(set(shown.values())) == 1
    values = (
        f"{next(iter(shown.values()))} in all"
        if alike
        else ", ".join(f"{label} {value}" for label, value in shown.items())
    )
    words = [
        f"Loss after {count(losses.step, 'step')}: {values} (within "
        f"{percent(LOSS_TOLERANCE, 1)} of one another at every step)."
    ]
    sums = {row.it.summary["params_sha256"] for row in comparison.contenders}
    if len(sums) > 1:
        words.append(
            "Between jobs the last bits differ: each adds in another order. That is right."
        )
    return words


def gate_lines(found: GateResult, base: str, width: int) -> Lines:
    """What MAX_SLOWDOWN found of each job."""
    lines: Lines = []
    for gate in found.gates:
        span = f"{percent(gate.slowdown, 1)} ({percent(gate.low, 1)} to {percent(gate.high, 1)})"
        how = f"{span} slower than {base}" if gate.slowdown > 0 else f"not slower than {base}"
        text = f"{gate.label}: {how}: {VERDICTS[gate.verdict]}, {percent(found.limit, 1)}"
        style = BAD if gate.verdict == "slower" else GOOD if gate.verdict == "within" else ""
        lines += labelled("" if lines else "slowdown", text, width, LABEL_WIDTH, style)
    return lines


def closing_screen(
    comparison: Comparison, gated: GateResult | None, differences: Sequence[str], width: int
) -> Lines:
    """Everything a comparison has to say but where its files are."""
    lines: Lines = [line()]
    for each in differences:
        lines += paragraph(f"NOT the same training: {each}", width, indent="  ", style=BAD)
    lines += [line()] if differences else []
    lines += [*comparison_table(comparison, width), line(), *legend(comparison, width)]
    lines += checks(comparison, width)
    lines += gate_lines(gated, comparison.base, width) if gated else []
    lines.append(line())
    for sentence in sentences(comparison):
        lines += paragraph(sentence, width, style="bold" if lines[-1].plain == "" else "")
    return lines


def next_lines(
    comparison: Comparison, folder: str, differences: Sequence[str], labs: Sequence[str], width: int
) -> Lines:
    """What to type next, and where the files are; `labs` are those that jobs can run on."""
    told = " ALLOW_DIFFERENT=1" if differences else ""
    ranked = [row.it.label for row in (*comparison.contenders, *comparison.rows)]
    other = next(label for label in ranked if label != comparison.base)
    commands = [(f"make compare RUNS={folder} BASE={other}{told}", "another base")]
    run, rival = comparison.rows[0].it.run, _rival(comparison)
    if rival and run["lab"]["name"] in labs:
        option = place_options(run)
        ring = f'make compare JOBS="{rival} {BADLY_PLACED}"{option}'
        commands.insert(0, (ring, "the ring, badly placed"))
    lines: Lines = []
    for place, (command, words) in enumerate(commands):
        label = "next" if place == 0 else ""
        lines += labelled(label, f"{command}    {words}", width, label_width=8)
    return [*lines, *labelled("files", f"runs/{folder}: compare.csv, compare.json", width, 8)]


def _rival(comparison: Comparison) -> str | None:
    """The fastest ready-made job that can be held against the badly placed ring, if that is new."""
    names = [str(row.it.run["job"]["name"]) for row in comparison.contenders]
    if BADLY_PLACED in names:
        return None
    ring = (BADLY_PLACED, load_job(BADLY_PLACED).model_dump(mode="json"))
    for name in names:
        if name in catalog():
            job = (name, load_job(name).model_dump(mode="json"))
            if not job_differences([job, ring]):
                return name
    return None


def kept_lines(run_ids: Sequence[str], width: int) -> Lines:
    """Where what was recorded of each job is, after a comparison that came to nothing."""
    return labelled("kept", ", ".join(f"runs/{run_id}" for run_id in run_ids), width, 8)
