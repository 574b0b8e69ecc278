"""What the ranks measure of their links themselves, where nobody did before them.

Owns that every rank prices and records the same measurement. How it is made is `ddp.probe`'s.
"""

from ddp.fabric import Fabric
from ddp.membership import Membership
from ddp.probe import probe_links
from ddp.transport.p2p import P2PTransport
from jobs.argument import NodeRates, RankArgument
from jobs.rankplan import measured_links


def with_links(told: RankArgument) -> RankArgument:
    """The argument with what was measured now; as it is where that is not asked for.

    Every rank must call it, after they have met. Raises TransportError, which names the link.
    """
    if not told.measure_links:
        return told
    group = Membership(None, told.job.ddp.timeout_s).connect()
    try:
        fabric = Fabric(tuple(told.node_of))
        table = probe_links(P2PTransport(group), told.rank, fabric, told.job.ddp.timeout_s)
    finally:
        group.close()
    names = told.node_names or [str(node) for node in range(told.nnodes)]
    probe = table.to_json(names)
    links = [NodeRates(**rates) for rates in measured_links(probe, names) or ()]
    return told.model_copy(update={"links": links, "probe": probe})
