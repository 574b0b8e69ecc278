"""What ranks that somebody else started say: plain lines, of rank 0 and of one rank a node."""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from jobs.errors import RunFailed
from jobs.events import Events, PhaseName
from jobs.modelwords import model_words
from jobs.torchrun.facts import Layout
from jobs.torchrun.folder import RankFolder

EVERY_S = 5.0
WORDS: Mapping[PhaseName, str] = {
    "start": "ready",
    "no_network": "without network",
    "warm_up": "warm-up",
    "train": "step",
    "finish": "finished",
}


class Progress(Events):
    """Says how far the run is: at the end of each phase, and now and then in it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(None)
        self._say = say
        self._said_s = time.monotonic()

    def phase(
        self,
        phase: PhaseName,
        done: int,
        total: int,
        loss: float | None = None,
        step_s: float | None = None,
    ) -> None:
        now_s = time.monotonic()
        if done < total and now_s - self._said_s < EVERY_S:
            return
        self._said_s = now_s
        words = f"  {WORDS[phase]}"
        if total > 1:
            words += f" {done}/{total}"
        if loss is not None and phase == "train":
            words += f"  loss {loss:.3f}"
        if step_s is not None:
            words += f"  {step_s * 1e3:.0f} ms"
        self._say(f"{words}\n")


def failure_of(words: str) -> RunFailed:
    """What run folders say of a rank's failure; of a connection that broke, without torch's own
    source positions, since who broke it can only be read where it ended.
    """
    short = re.sub(r"(?:RuntimeError: )?\[[^\]]*/gloo/[^\]]*\]\s*", "", words)
    if short == words:
        return RunFailed(words)
    return RunFailed(
        short.partition(". This is typically")[0],
        rule="a rank that ends takes all others with it, and nobody saw this one end",
        fix="look at what was said on that machine: torchrun there names the rank and its signal",
    )


def header_text(run: Mapping[str, Any], places: Layout, source: str, why: str) -> str:
    """The job, who is where, and which NIC is the fabric."""
    job = run["job"]
    started = {"by hand": "started by hand"}.get(source, f"started by {source}")
    lines = [
        f'Job "{job["name"]}": {model_words(job["model"])}; {job["ddp"]["algorithm"]}; '
        f"{run['world_size']} ranks {started}, {places.threads} threads each"
    ]
    for node, first in zip(places.nodes, places.first, strict=True):
        ranks = ", ".join(map(str, places.ranks_on(node.index)))
        lines.append(f"  {node.name}  {node.address} {node.interface}  {first.host}  ranks {ranks}")
    lines.append(f"  fabric  {places.nodes[places.node_of[0]].interface} on rank 0: {why}")
    if len(places.first) > 1:
        lines.append("  links   nothing is limited here; the ranks measure them before they train")
    return "".join(f"{line}\n" for line in lines)


def parts_text(it: RankFolder, node: int, own: list[int], places: Layout) -> str:
    """Which ranks' files this node keeps, and how the run becomes whole."""
    ranks = ", ".join(map(str, own))
    host = places.first[node].host
    return (
        f"node{node}: ranks {ranks} are kept in {it.folder.path} on {host}. Machines share no "
        f"folder here; with those of all {len(places.first)} nodes on one machine:\n"
        f"  next    ddplab collect DIR DIR ... --out runs/{it.session.run_id}\n"
    )
