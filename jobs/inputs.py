"""What a job needs from outside its job file, looked at before anything is started.

Owns what is looked at: the text, and the file of a model of one's own. Every rank reads both again.
"""

from jobs.modelfile import read_source
from jobs.modelspec import OwnSpec
from jobs.spec import JobSpec


def check_inputs(job: JobSpec, num_ranks: int) -> None:
    """Raises DataError or ModelError where ranks would; the usual text needs no look."""
    if isinstance(job.model, OwnSpec):
        read_source(job.model)
    if job.data.path is None and job.data.limit_bytes is None:
        return
    from jobs.data import Windows, check_enough, load_data  # torch is slow to import

    text = load_data(job.data)
    samples = num_ranks * job.data.batch_size * job.train.accumulate
    check_enough(Windows(text.content, job.model.context), text, samples, job.model.context)
