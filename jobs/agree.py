"""What ranks tell one another before they train, so that all do the same or all stop.

Owns the comparison of the text each has read, of the model each has built, of the hook each has
found and of the GPUs each sees. What a model's tensors are is compared by ddp, and so is an
algorithm.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from torch._C._distributed_c10d import Store

from jobs.argument import RankArgument
from jobs.devices import DeviceFacts, RankDevice, choose, seen_by, why_not_on_gpus
from jobs.errors import DataError, ModelError, WorkerError
from jobs.modelfile import KEY, ModelFile
from jobs.models import Model
from jobs.owncode import FoundHook, find_hook
from jobs.rankwords import ranks_words
from jobs.wrapping import told_in_words

Made = TypeVar("Made")


def agree_on_data(told: RankArgument, store: Store, sha256: str) -> None:
    """Raises the same DataError on every rank where one of them reads another text.

    WorkerError where a rank ended before it said what it read.
    """
    read = _exchange(told, store, "data", "the data", sha256)
    others = [rank for rank in range(told.world_size) if read[rank] != read[0]]
    if others:
        raise DataError(
            f"data.path: {ranks_words(others)} read another text than rank 0",
            rule="every node reads the same bytes",
            fix="copy the same file or folder to every node",
            seen=f"SHA-256 {read[others[0]][:12]}, and {read[0][:12]} on rank 0",
        )


def agree_on_model(told: RankArgument, store: Store, build: Callable[[], Model]) -> Model:
    """What `build` returns. Raises the same ModelError on every rank where it fails on one of them.

    Also where ranks have built it from different files; WorkerError where a rank ended meanwhile.
    """
    return _agree_on(told, store, ("model", KEY), build, lambda model: model.file)


def agree_on_hook(told: RankArgument, store: Store) -> FoundHook | None:
    """The hook that the job names, where it names one. Raises as `agree_on_model` does."""
    place = told.job.ddp.hook
    if place is None:
        return None
    return _agree_on(
        told, store, ("hook", "ddp.hook"), lambda: find_hook(place), lambda it: it.file
    )


def agree_on_device(told: RankArgument, store: Store) -> RankDevice:
    """Where this rank computes. Raises the same WorkerError on every rank where GPUs were asked for
    and one rank has none of its own.
    """
    asked = told.job.device
    reason = why_not_on_gpus(told.job.ddp, told.node_of)
    if asked == "cpu" or (asked == "auto" and reason):
        return RankDevice(asked, None, reason)
    own = seen_by(told)
    answers = _exchange(told, store, "device", "their devices", asdict(own))
    reason = choose(asked, [DeviceFacts(**theirs) for theirs in answers])
    return RankDevice(asked, None, reason) if reason else RankDevice(asked, own, None)


def _agree_on(
    told: RankArgument,
    store: Store,
    names: tuple[str, str],
    make: Callable[[], Made],
    file_of: Callable[[Made], ModelFile | None],
) -> Made:
    """`names`: what it is, and the key of the job that says what to run for it."""
    (what, key), made, failure = names, None, None
    try:
        made = make()
    except Exception as exc:
        failure = exc
    file = None if made is None else file_of(made)
    said = {
        "error": told_in_words(failure) if failure else None,
        "sha256": file.sha256 if file else None,
    }
    answers = _exchange(told, store, what, f"the {what}", said)
    for rank, theirs in enumerate(answers):
        if theirs["error"]:
            raise ModelError(f"rank {rank}: {theirs['error']}") from failure
    others = [rank for rank in range(told.world_size) if answers[rank] != answers[0]]
    if others:
        raise ModelError(
            f"{key}: {ranks_words(others)} ran another file than rank 0",
            rule="every node has the same file",
            fix="copy it to every node, and leave it alone until the job has started",
        )
    assert made is not None
    return made


def _exchange(told: RankArgument, store: Store, topic: str, what: str, own: Any) -> list[Any]:
    """What each rank has to say on the topic, in order of ranks."""
    # several jobs may share the store: what was said of an earlier one must not answer for this
    keys = [f"{topic}/{told.run_id}/{rank}" for rank in range(told.world_size)]
    try:
        store.set(keys[told.rank], json.dumps(own))
        return [json.loads(store.get(key)) for key in keys]
    except RuntimeError as exc:
        raise WorkerError(
            f"rank {told.rank} could not learn what the other ranks say of {what}",
            rule="all ranks have their data, model and hook before they start",
            fix="look at the logs of the other ranks",
            seen=str(exc).partition("\n")[0],
        ) from exc
