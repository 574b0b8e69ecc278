"""JobSpec: what a job file may say, what each key means, and how a job is found by name.

Owns the whole job, rules between its sections, and the ready-made jobs; what each section may say
is `sections` and `modelspec`. Starts nothing; the worker reads every key.
"""

import json
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, model_validator

from cluster.yamlfile import Document, StrictModel, load_yaml, validate
from jobs.devices import GPU_FIX, GPU_RULE, why_not_on_gpus
from jobs.errors import JobSpecError
from jobs.modelspec import (
    MOST,
    OWN,
    ByteGptSpec,
    ModelSpec,
    OwnSpec,
    PacedSpec,
    kind_of,
)
from jobs.owncode import anchored, reduces
from jobs.sections import DataSpec, DdpSpec, InjectSpec, PaceSpec, TrainSpec

__all__ = [
    "DataSpec",
    "DdpSpec",
    "InjectSpec",
    "JobSpec",
    "ModelSpec",
    "PaceSpec",
    "TrainSpec",
    "catalog",
    "compute_scaled",
    "load_job",
    "node_of",
]

MIN_BASELINE_STEPS = 20
USUAL = "hier"
PLACEMENTS = ("contiguous", "interleaved")
KIND_KEY, OWN_KEY = "model.kind", "model.import"


def _placement(value: object) -> str | list[int]:
    if isinstance(value, list) and all(type(node) is int and node >= 0 for node in value):
        return value
    if isinstance(value, str) and value in PLACEMENTS:
        return value
    rules = " or ".join(PLACEMENTS)
    raise JobSpecError(
        f"{json.dumps(value)}", rule=f"is {rules}, or the node of each rank such as [0, 1, 0, 1]"
    )


Placement = Annotated[str | list[int], PlainValidator(_placement)]


class JobSpec(StrictModel):
    """One training job: everything a run needs to know besides the lab it runs on."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    """Names the run folder and the lines of every table."""
    model: ModelSpec = ByteGptSpec()
    """The model that is trained: its kind, and the keys that this kind has."""
    data: DataSpec = DataSpec()
    """What it is trained on."""
    train: TrainSpec = TrainSpec()
    """How it is trained."""
    ddp: DdpSpec = DdpSpec()
    """How its gradients are reduced."""
    pace: PaceSpec | None = None
    """Floors under the computing; null: it runs as fast as it can."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What computes: auto is cuda where all ranks have a GPU each and the job can use it."""
    placement: Placement = "contiguous"
    """Which node each rank runs on: a rule, or a list with the node of every rank."""
    expects_divergence: bool = False
    """True where ranks must end with different parameters, because nothing is reduced."""
    baseline_steps: Annotated[int, Field(ge=MIN_BASELINE_STEPS, le=MOST)] = MIN_BASELINE_STEPS
    """Steps with nothing sent, half before and half after the measured ones."""
    inject: InjectSpec | None = None
    """A delay put in on purpose; null: none."""

    @property
    def floors_ms(self) -> tuple[float, float] | None:
        """Shortest forward and backward of one micro-step; None: as fast as it can."""
        if self.pace:
            return self.pace.forward_ms, self.pace.backward_ms
        if isinstance(self.model, PacedSpec):
            each = (self.model.layer_forward_ms, self.model.layer_backward_ms)
            return self.model.layers * each[0], self.model.layers * each[1]
        return None

    @model_validator(mode="after")
    def _an_injected_delay_has_its_place(self) -> Self:
        if self.inject and self.inject.phase == "bucket" and self.ddp.wrapper == "torch":
            raise JobSpecError(
                "inject.phase bucket with ddp.wrapper torch",
                rule="which buckets there are is torch's business, so none is named",
                fix="inject into another phase, or leave ddp.wrapper out",
            )
        if self.inject and self.inject.phase == "bucket" and not reduces(self.ddp.algorithm):
            raise JobSpecError(
                f"inject.phase bucket with algorithm {self.ddp.algorithm}",
                rule="it reduces no bucket that could take longer",
                fix="inject into another phase, or use another algorithm",
            )
        if self.inject and self.inject.phase != "bucket" and self.inject.bucket:
            raise JobSpecError(
                f"inject.bucket {self.inject.bucket} with phase {self.inject.phase}",
                rule="a bucket is named only where phase is bucket",
                fix="leave inject.bucket out",
            )
        return self

    @model_validator(mode="after")
    def _a_gpu_can_reduce_it(self) -> Self:
        reason = why_not_on_gpus(self.ddp) if self.device == "cuda" else None
        if reason:
            raise JobSpecError(f"device cuda: {reason}", rule=GPU_RULE, fix=GPU_FIX)
        return self

    @model_validator(mode="after")
    def _no_sync_holds_something_back(self) -> Self:
        if self.train.accumulate == 1 and not self.ddp.no_sync:
            raise JobSpecError(
                "ddp.no_sync false with train.accumulate 1",
                rule="no_sync holds back the micro-steps before the last, and there are none",
                fix="write train.accumulate: 4, or leave ddp.no_sync out",
            )
        return self

    @model_validator(mode="after")
    def _one_source_of_time(self) -> Self:
        if self.pace and isinstance(self.model, PacedSpec):
            raise JobSpecError(
                "pace with model.kind paced",
                rule="the layers of this kind take the time that they are told to, no other",
                fix="write pace: null, and set model.layer_forward_ms and model.layer_backward_ms",
            )
        return self

    @model_validator(mode="after")
    def _divergence_is_meant(self) -> Self:
        diverges = not reduces(self.ddp.algorithm)
        if diverges != self.expects_divergence:
            raise JobSpecError(
                f"expects_divergence {json.dumps(self.expects_divergence)} with algorithm "
                f"{self.ddp.algorithm}",
                rule="ranks end different where nothing is reduced, and nowhere else",
                fix=f"write expects_divergence: {json.dumps(diverges)}",
            )
        return self


def node_of(placement: str | Sequence[int], nnodes: int, nproc_per_node: int) -> tuple[int, ...]:
    """The node of every rank. Raises JobSpecError when a list does not fit the cluster."""
    world_size = nnodes * nproc_per_node
    if placement == "contiguous":
        return tuple(rank // nproc_per_node for rank in range(world_size))
    if placement == "interleaved":
        return tuple(rank % nnodes for rank in range(world_size))
    nodes = tuple(int(node) for node in placement)
    if len(nodes) != world_size or set(nodes) != set(range(nnodes)):
        raise JobSpecError(
            f"placement: {list(nodes)}",
            rule=f"names the node of each of {world_size} ranks "
            f"({nnodes} nodes x {nproc_per_node}), and every node from 0 to {nnodes - 1}",
            fix=f"placement: {list(node_of('contiguous', nnodes, nproc_per_node))}",
        )
    return nodes


def _stem(path: Path) -> str:
    return path.stem


def catalog() -> dict[str, Path]:
    """The ready-made jobs: name to file, in order of their names."""
    folder = Path(str(files("jobs.catalog")))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"), key=_stem)}


def load_job(name_or_path: str, sets: Sequence[str] = ()) -> JobSpec:
    """The job of that name, or in that file, with each `key=value` of `sets` put over it.

    A ready-made job answers to its algorithm's name too. Where `sets` choose another kind of model
    than the file, its keys are those of `sets` and this kind's own defaults; the file's are
    dropped. Raises JobSpecError for an unknown job, and cluster's SpecError with every fault of
    its file or of `sets` at once.
    """
    document = _assigned(load_yaml(_find(name_or_path)), sets)
    return _with_absolute_paths(validate(JobSpec, document), document)


def _assigned(document: Document, sets: Sequence[str]) -> Document:
    about_model: list[str] = []
    for assignment in sets:
        key = assignment.partition("=")[0].strip()
        if _changes_kind(document, key, assignment):
            document = document.without("model")
            for earlier in about_model:  # what was set is not dropped
                document = document.assign(earlier)
        document = document.assign(assignment)
        if key.partition(".")[0] == "model":
            about_model.append(assignment)
    return document


def _changes_kind(document: Document, key: str, assignment: str) -> bool:
    before = kind_of(document.data.get("model", {}))
    if key == KIND_KEY:
        return before != kind_of(document.assign(assignment).data["model"])
    return key == OWN_KEY and before != OWN


def _with_absolute_paths(job: JobSpec, document: Document) -> JobSpec:
    """Ranks run in folders of their own, so no path may depend on where they are."""

    def folder(*key: str) -> Path:
        file = document.where(key).rpartition(":")[0]
        return Path(document.name).parent if file == document.name else Path()

    def absolute(path: str | Path, *key: str) -> Path:
        return (folder(*key) / Path(path).expanduser()).absolute()

    if job.data.path is not None:
        path = str(absolute(job.data.path, "data", "path"))
        job = job.model_copy(update={"data": job.data.model_copy(update={"path": path})})
    if isinstance(job.model, OwnSpec):
        own = job.model.at(absolute(job.model.path, "model", "import"))
        job = job.model_copy(update={"model": own})
    named = {key: getattr(job.ddp, key) for key in ("algorithm", "hook")}
    places = {key: text and anchored(text, folder("ddp", key)) for key, text in named.items()}
    return job.model_copy(update={"ddp": job.ddp.model_copy(update=places)})


def compute_scaled(job: JobSpec, factor: float) -> JobSpec:
    """The job with its paced computing taking `factor` times as long; unpaced ones as they are."""
    pace, model = job.pace, job.model
    if pace:
        times = {name: getattr(pace, name) * factor for name in ("forward_ms", "backward_ms")}
        pace = pace.model_copy(update=times)
    if isinstance(model, PacedSpec):
        names = ("layer_forward_ms", "layer_backward_ms")
        model = model.model_copy(update={name: getattr(model, name) * factor for name in names})
    return job.model_copy(update={"pace": pace, "model": model})


def _find(name_or_path: str) -> Path:
    path = Path(name_or_path).expanduser()
    if path.suffix in (".yaml", ".yml") or path.parent != Path():
        return path
    jobs = catalog()
    if name_or_path in jobs:
        return jobs[name_or_path]
    names = {**_aliases(jobs), **jobs}
    if name_or_path in names:
        return names[name_or_path]
    nearest = get_close_matches(name_or_path, names, n=1)
    raise JobSpecError(
        f"job {name_or_path!r}: unknown",
        rule=f"a job is one of {', '.join(jobs)}, or a file that ends in .yaml",
        fix=f"JOB={nearest[0] if nearest else next(iter(jobs))}",
    )


def _aliases(jobs: dict[str, Path]) -> dict[str, Path]:
    """By its algorithm, the ready-made job that differs from the usual one in nothing else."""

    def besides(job: dict[str, Any]) -> dict[str, Any]:
        whole = {
            **{name: info.default for name, info in DdpSpec.model_fields.items()},
            **job["ddp"],
        }
        about = {key: job.get(key) for key in ("model", "data", "train", "pace")}
        return {**about, "ddp": {**whole, "algorithm": None}}

    loaded = {path: load_yaml(path).data for path in jobs.values()}
    usual = besides(loaded[jobs[USUAL]])
    return {job["ddp"]["algorithm"]: path for path, job in loaded.items() if besides(job) == usual}
