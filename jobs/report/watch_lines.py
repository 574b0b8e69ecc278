"""Where runs can be watched: the exporter's address under a screen about labs."""

from collections.abc import Iterable, Mapping

from jobs.report.text import Lines, labelled, line


def watch_lines(addresses: Iterable[str | None]) -> Lines:
    """A line for each exporter, in the columns of `next` and `stop`."""
    known = sorted({address for address in addresses if address})
    what = "runs, and /metrics for Prometheus"
    return [line(f"  watch   {address}".ljust(44) + what) for address in known]


def page_lines(pages: Mapping[str, str]) -> Lines:
    """A line for each page that a lab has of its own, by its service."""
    return [
        line(f"  watch   {address}".ljust(44) + service.capitalize())
        for service, address in sorted(pages.items())
    ]


def unwatched_lines(fault: str, width: int) -> Lines:
    """Why there is no exporter, although the lab is up."""
    return labelled("watch", f"not possible: {fault}", width, label_width=8)
