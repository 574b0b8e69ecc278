"""What a comparison says in sentences: who wins and why, what is noise, what other links give."""

from jobs.compare.comparison import NO_NETWORK, Comparison, Row
from jobs.compare.stats import Estimate
from jobs.report.lab_words import rate_words
from jobs.report.text import megabytes, milliseconds, number, percent

ALIKE = 0.02  # predicted steps that are so near to one another, or to computing alone, are alike
SAME_BYTES = 1.01


def sentences(comparison: Comparison) -> list[str]:
    """Winner first, then who cannot be told from it, then other links."""
    contenders = comparison.contenders
    if len(contenders) < 2:
        return []
    found = [_winner(comparison, contenders[0])]
    for row in contenders[1:]:
        if row.it.label != comparison.base and not _sure(comparison, row):
            found.append(_noise(contenders[0], row, comparison))
    forecast = _forecast(comparison)
    return [*found, forecast] if forecast else found


def _winner(comparison: Comparison, best: Row) -> str:
    base = comparison.row(comparison.base)
    if not base.it.trains_together:
        return f"{best.it.label} is the fastest of those that train one model together."
    if best is base:
        others = comparison.contenders[1]
        if not _sure(comparison, others):
            return _noise(best, others, comparison)
        ratio = comparison.against(best.it.label, others.it.label)
        return f"{_times(best, ratio, others)}{_why(best, others)}"
    if not best.speed_up.sure:
        return _noise(best, base, comparison)
    return f"{_times(best, best.speed_up, base)}{_why(best, base)}"


def _sure(comparison: Comparison, row: Row) -> bool:
    best = comparison.contenders[0]
    return comparison.against(best.it.label, row.it.label).sure


def _times(best: Row, ratio: Estimate, other: Row) -> str:
    times = number(ratio.value, 2 if ratio.value >= 1.005 else 3)
    return f"{best.it.label} is {times} times as fast as {other.it.label} here"


def _why(best: Row, other: Row) -> str:
    """In bytes, where they differ; a NIC counts headers too, so both are asked alike then."""
    ours, theirs = best.sent_bytes, other.sent_bytes
    if ours is None or theirs is None or best.it.run["nnodes"] == 1:
        return "."
    counted = ours[1] or theirs[1]
    if counted:
        nics = [row.it.summary["nic_tx_bytes_per_step"] for row in (best, other)]
        if None in nics:
            return "."
        sent, instead = nics
    else:
        sent, instead = ours[0], theirs[0]
    headers = ", headers included" if counted else ""
    if instead > SAME_BYTES * sent:
        return f": a node sends {megabytes(sent)} a step instead of {megabytes(instead)}{headers}."
    if sent > SAME_BYTES * instead:
        return f", although a node sends {megabytes(sent)} and not {megabytes(instead)}{headers}."
    return f", although a node sends the same: {megabytes(sent)} a step{headers}."


def _noise(best: Row, other: Row, comparison: Comparison) -> str:
    ratio = comparison.against(best.it.label, other.it.label)
    if ratio.low is None or ratio.high is None:
        return (
            f"Whether {best.it.label} is faster than {other.it.label} one round cannot tell: "
            "ROUNDS=3."
        )
    more = (
        "more rounds may tell"
        if comparison.together
        else "jobs that take turns tell more: make compare JOBS"
    )
    return (
        f"{best.it.label} and {other.it.label} cannot be told apart here: the difference of "
        f"{percent(ratio.value - 1, 1)} is within the noise ({number(ratio.low, 2)} to "
        f"{number(ratio.high, 2)} times as fast); {more}."
    )


def _forecast(comparison: Comparison) -> str | None:
    forecast, computing = comparison.forecast, comparison.no_network.get(NO_NETWORK)
    if forecast is None or computing is None:
        return None
    fastest, slowest = min(forecast.step_s.values()), max(forecast.step_s.values())
    rate = rate_words(forecast.rate_bits_per_s)
    if slowest <= (1 + ALIKE) * fastest:
        low, high = milliseconds(fastest), milliseconds(slowest)
        span = low if low == high else f"{low.removesuffix(' ms')} to {high}"
        priced = [row.it.label for row in comparison.contenders if row.it.label in forecast.step_s]
        everybody = len(priced) == len(comparison.contenders)
        who = "all of them" if everybody else " and ".join(priced)
        text = f"At {rate} {who} would take {span} (predicted)"
        free = slowest <= (1 + ALIKE) * computing.mean
        return (
            f"{text}: the link would no longer hold {'it' if len(priced) == 1 else 'them'} up."
            if free
            else f"{text}."
        )
    steps = sorted(forecast.step_s.items(), key=lambda item: item[1])
    listed = ", ".join(f"{label} {milliseconds(step_s)}" for label, step_s in steps)
    return f"At {rate} a step would take (predicted): {listed}."
