"""What a job needs from outside its job file, looked at before anything is started.

Owns what is looked at: the text, and code of one's own. Every rank reads both again.
"""

from jobs.modelfile import read_source
from jobs.modelspec import OwnSpec
from jobs.owncode import check_own_code
from jobs.spec import JobSpec, node_of
from jobs.text import check_enough, load_data


def check_inputs(job: JobSpec, nodes: int, ranks_per_node: int) -> None:
    """Raises DataError, ModelError or JobSpecError where ranks would; the usual needs no look."""
    num_ranks = nodes * ranks_per_node
    check_own_code(job.ddp, node_of(job.placement, nodes, ranks_per_node))
    if isinstance(job.model, OwnSpec):
        read_source(job.model)
    if job.data.path is None and job.data.limit_bytes is None:
        return
    samples = num_ranks * job.data.batch_size * job.train.accumulate
    check_enough(load_data(job.data), samples, job.model.context)
