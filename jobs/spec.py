"""JobSpec: what a job file may say, what each key means, and how a job is found by name.

Owns keys, defaults, rules and the ready-made jobs. Starts nothing; the worker reads every key.
"""

import json
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PlainValidator, field_validator, model_validator

from cluster.yamlfile import StrictModel, load_yaml, validate
from ddp.algorithms import find_algorithm
from ddp.fabric import Fabric
from jobs.errors import JobSpecError

MIN_BASELINE_STEPS = 20
PLACEMENTS = ("contiguous", "interleaved")

PositiveInt = Annotated[int, Field(ge=1)]
NotNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NotNegativeFloat = Annotated[float, Field(ge=0)]


def _placement(value: object) -> str | list[int]:
    if isinstance(value, list) and all(type(node) is int and node >= 0 for node in value):
        return value
    if isinstance(value, str) and value in PLACEMENTS:
        return value
    rules = " or ".join(PLACEMENTS)
    raise JobSpecError(
        f"{json.dumps(value)}", rule=f"is {rules}, or the node of each rank such as [0, 1, 0, 1]"
    )


def _segments(value: object) -> Literal["auto"] | int:
    if value == "auto" or (type(value) is int and value >= 1):
        return value
    raise JobSpecError(f"{json.dumps(value)}", rule="is auto or a whole number from 1 on")


Placement = Annotated[str | list[int], PlainValidator(_placement)]
Segments = Annotated[Literal["auto"] | int, PlainValidator(_segments)]


class ModelSpec(StrictModel):
    """The model that is trained."""

    kind: Literal["byte-gpt"] = "byte-gpt"
    """Which model: byte-gpt is a GPT that reads and predicts bytes."""
    layers: PositiveInt = 4
    """Transformer blocks, one after the other."""
    width: PositiveInt = 128
    """Numbers that stand for one byte inside the model."""
    heads: PositiveInt = 4
    """Attention heads of each block; they share the width equally."""
    context: Annotated[int, Field(ge=2)] = 64
    """Bytes the model sees at once."""

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> Self:
        if self.width % self.heads:
            fitting = [heads for heads in range(1, self.width + 1) if self.width % heads == 0]
            nearest = min(fitting, key=lambda heads: abs(heads - self.heads))
            raise JobSpecError(
                f"width {self.width} with {self.heads} heads",
                rule="the heads share the width equally",
                fix=f"write heads: {nearest}",
            )
        return self


class DataSpec(StrictModel):
    """What the model is trained on."""

    kind: Literal["text"] = "text"
    """Which data: text is any bytes, cut into windows."""
    path: str | None = None
    """A file, or a folder read in order of its file names; null: the Python standard library.

    A relative path counts from the folder in which the command is given.
    """
    batch_size: PositiveInt = 8
    """Samples per rank and micro-step."""


class TrainSpec(StrictModel):
    """How the model is trained."""

    steps: PositiveInt = 30
    """Optimizer steps that are measured."""
    warmup_steps: NotNegativeInt = 3
    """Optimizer steps before them that are not counted."""
    lr: PositiveFloat = 0.001
    """Learning rate."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """Which optimizer."""
    seed: NotNegativeInt = 0
    """Fixes the initial parameters and the order of the data."""
    accumulate: PositiveInt = 1
    """Micro-steps whose gradients are added up before they are reduced, once, and used."""
    clip_norm: PositiveFloat | None = None
    """Largest norm of the reduced gradients; null: not clipped."""


class DdpSpec(StrictModel):
    """How gradients are reduced."""

    algorithm: str = "hierarchical"
    """Which all-reduce."""
    ring_order: Literal["contiguous", "interleaved", "shuffled"] = "contiguous"
    """How a ring visits the nodes: one after the other, alternating, or at random."""
    ring_seed: NotNegativeInt = 0
    """Fixes the ring when ring_order is shuffled."""
    segments: Segments = "auto"
    """Parts of a bucket in flight at once."""
    bucket_cap_mb: PositiveFloat = 1.0
    """Size at which a bucket of gradients is full, in MiB; the first one at 1 MiB or less."""
    overlap: bool = True
    """Reduce buckets while backward still computes; false: all of them after it."""
    per_parameter: bool = False
    """One bucket for each parameter: what bucketing saves."""
    timeout_s: PositiveFloat = 60.0
    """How long a rank waits for a peer before the job fails."""

    @field_validator("algorithm")
    @classmethod
    def _known_algorithm(cls, name: str) -> str:
        return find_algorithm(name).name

    @model_validator(mode="after")
    def _every_key_has_an_effect(self) -> Self:
        algorithm = find_algorithm(self.algorithm)
        if algorithm.build:
            algorithm.build(Fabric((0,)), self.ring_order, self.ring_seed)
        elif (self.ring_order, self.ring_seed, self.segments) != ("contiguous", 0, "auto"):
            raise JobSpecError(
                f"{self.algorithm} with a ring order, a ring seed or segments",
                rule="it has no schedule of ours, so these have no effect",
                fix="leave ring_order contiguous, ring_seed 0 and segments auto",
            )
        return self


class PaceSpec(StrictModel):
    """Floors under the model's own computing: real gradients, stable times."""

    forward_ms: NotNegativeFloat
    """Shortest forward of one micro-step, spread over the layers by sleeping."""
    backward_ms: NotNegativeFloat
    """Shortest backward of one micro-step, spread over the layers by sleeping."""


class InjectSpec(StrictModel):
    """A delay put in on purpose, in one place of every step."""

    phase: Literal["data", "forward", "backward", "optimizer", "bucket"]
    """Where: in a phase of the step, or in the reduction of one bucket."""
    ms: NotNegativeFloat
    """How long."""
    rank: NotNegativeInt | None = None
    """Which rank is slowed down; null: every one."""
    bucket: NotNegativeInt = 0
    """Which bucket, when phase is bucket."""


class JobSpec(StrictModel):
    """One training job: everything a run needs to know besides the lab it runs on."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    """Names the run folder and the lines of every table."""
    model: ModelSpec = ModelSpec()
    """The model that is trained."""
    data: DataSpec = DataSpec()
    """What it is trained on."""
    train: TrainSpec = TrainSpec()
    """How it is trained."""
    ddp: DdpSpec = DdpSpec()
    """How its gradients are reduced."""
    pace: PaceSpec | None = None
    """Floors under the computing; null: it runs as fast as it can."""
    placement: Placement = "contiguous"
    """Which node each rank runs on: a rule, or a list with the node of every rank."""
    expects_divergence: bool = False
    """True where ranks must end with different parameters, because nothing is reduced."""
    baseline_steps: Annotated[int, Field(ge=MIN_BASELINE_STEPS)] = MIN_BASELINE_STEPS
    """Steps with nothing sent, half before and half after the measured ones."""
    inject: InjectSpec | None = None
    """A delay put in on purpose; null: none."""

    @model_validator(mode="after")
    def _an_injected_delay_has_its_place(self) -> Self:
        reduces = find_algorithm(self.ddp.algorithm).proof != "none"
        if self.inject and self.inject.phase == "bucket" and not reduces:
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
    def _divergence_is_meant(self) -> Self:
        diverges = find_algorithm(self.ddp.algorithm).proof == "none"
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

    A ready-made job answers to its algorithm's name too. Raises JobSpecError for an unknown job,
    and cluster's SpecError with every fault of its file or of `sets` at once.
    """
    document = load_yaml(_find(name_or_path))
    for assignment in sets:
        document = document.assign(assignment)
    return _with_absolute_path(validate(JobSpec, document))


def _with_absolute_path(job: JobSpec) -> JobSpec:
    """Ranks run in folders of their own, so data.path must not depend on where they are."""
    if job.data.path is None:
        return job
    path = str(Path(job.data.path).expanduser().absolute())
    return job.model_copy(update={"data": job.data.model_copy(update={"path": path})})


def _find(name_or_path: str) -> Path:
    path = Path(name_or_path).expanduser()
    if path.suffix in (".yaml", ".yml") or path.parent != Path():
        return path
    jobs = catalog()
    names = {**_aliases(jobs), **jobs}
    if name_or_path in names:
        return names[name_or_path]
    nearest = get_close_matches(name_or_path, names, n=1)
    raise JobSpecError(
        f"job {name_or_path!r}: unknown",
        rule=f"a job is one of {', '.join(jobs)}, or a file that ends in .yaml",
        fix=f"JOB={nearest[0]}" if nearest else None,
    )


def _aliases(jobs: dict[str, Path]) -> dict[str, Path]:
    """The first ready-made job of each algorithm, under the algorithm's name."""
    aliases: dict[str, Path] = {}
    for path in jobs.values():
        aliases.setdefault(load_yaml(path).data["ddp"]["algorithm"], path)
    return aliases
