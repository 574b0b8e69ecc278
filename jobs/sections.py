"""What the sections of a job file may say, but for its model: data, train, ddp, pace, inject.

Owns their keys, defaults and rules. Rules between sections are `spec`'s.
"""

import json
from typing import Annotated, Literal, Self

from pydantic import PlainValidator, field_validator, model_validator

from cluster.yamlfile import StrictModel
from ddp.algorithms import find_algorithm
from ddp.fabric import Fabric
from ddp.importpath import is_import_path
from jobs.errors import JobSpecError
from jobs.modelspec import NotNegativeFloat, NotNegativeInt, PositiveFloat, PositiveInt
from jobs.owncode import reduces, require_algorithm, require_path


def _segments(value: object) -> Literal["auto"] | int:
    if value == "auto" or (type(value) is int and value >= 1):
        return value
    raise JobSpecError(f"{json.dumps(value)}", rule="is auto or a whole number from 1 on")


BARRIER_WITH = "noop"
CURE = "is the cure for the deadlock"

Segments = Annotated[Literal["auto"] | int, PlainValidator(_segments)]


class DataSpec(StrictModel):
    """What the model is trained on."""

    kind: Literal["text"] = "text"
    """Which data: text is any bytes, cut into windows."""
    path: str | None = None
    """A file, or a folder read in order of its file names; null: the Python standard library.

    A relative path counts from the job file's folder; given with SET or DATA, from the folder in
    which the command is given.
    """
    limit_bytes: PositiveInt | None = None
    """Train on the first so many bytes of it; null: on all."""
    batch_size: PositiveInt = 8
    """Samples per rank and micro-step."""
    set_epoch: bool = True
    """Shuffle anew in each pass over the text; false: the sampler is never told, as by mistake."""


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

    wrapper: Literal["ddplab", "torch"] = "ddplab"
    """Whose DistributedDataParallel: ours, or torch's own, with our algorithm as its hook unless
    it is native.
    """
    algorithm: str = "hierarchical"
    """Which all-reduce: a name of ours, or one of your own, `my.py:build` or `my_pkg.module:build`.

    A relative path counts from the job file's folder, and a module is looked for there first; given
    with SET or ALGORITHM, in the folder in which the command is given.
    """
    hook: str | None = None
    """A communication hook instead, by its place as for algorithm, called as torch calls hooks.

    Its state is None. algorithm must stay as it is.
    """
    ring_order: Literal["contiguous", "interleaved", "shuffled"] = "contiguous"
    """How a ring visits the nodes: one after the other, alternating, or at random."""
    ring_seed: NotNegativeInt = 0
    """Fixes the ring when ring_order is shuffled."""
    segments: Segments = "auto"
    """Parts of a bucket in flight at once."""
    bucket_cap_mb: PositiveFloat = 1.0
    """Size at which a bucket of gradients is full, in MiB; the first one at 1 MiB or less, but
    not with wrapper torch.
    """
    overlap: bool = True
    """Reduce buckets while backward still computes; false: all of them after it."""
    per_parameter: bool = False
    """One bucket for each parameter: what bucketing saves."""
    find_unused_parameters: bool = False
    """Look in each step which parameters get no gradient: for a model whose forward branches."""
    static_graph: bool = False
    """Learn that in the first step, for a model that does the same in all."""
    no_sync: bool = True
    """Micro-steps before the last run inside no_sync(); false: each is reduced, K times the bytes.
    """
    sync: Literal["allreduce", "barrier"] = "allreduce"
    """What follows backward: gradients are reduced, or ranks only meet at a barrier (with noop)."""
    lesson_deadlock: bool = False
    """Wait for a gradient that never comes, as a naive wrapper would; ends by timeout_s."""
    transport: Literal["sockets", "torch"] = "sockets"
    """What carries chunks between ranks: sockets of our own, or torch's messages."""
    shared_memory: bool = True
    """With sockets, ranks of a node read each other's buckets; never where its inside has a rate.
    """
    timeout_s: PositiveFloat = 60.0
    """How long a rank waits for a peer before the job fails."""

    @field_validator("algorithm")
    @classmethod
    def _known_algorithm(cls, name: str) -> str:
        return require_algorithm(name)

    @field_validator("hook")
    @classmethod
    def _a_place(cls, text: str | None) -> str | None:
        return text if text is None else require_path(text)

    @model_validator(mode="after")
    def _every_key_has_an_effect(self) -> Self:
        if self.hook is not None and (self.algorithm, self.segments) != ("hierarchical", "auto"):
            raise JobSpecError(
                f"hook {self.hook} with algorithm {self.algorithm}, segments {self.segments}",
                rule="a hook does all the reducing, so these have no effect",
                fix="leave them out, or write algorithm: hierarchical and segments: auto",
            )
        if is_import_path(self.algorithm):  # known once it has run: where ranks are known
            return self
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

    @model_validator(mode="after")
    def _torchs_class_takes_it(self) -> Self:
        if self.wrapper != "torch":
            return self
        for taken, seen, rule, fix in (
            (
                reduces(self.algorithm),
                f"algorithm {self.algorithm}",
                "torch's class always reduces",
                "leave wrapper out",
            ),
            (
                self.overlap,
                "overlap false",
                "torch's class always reduces while backward computes",
                "leave overlap out, or wrapper",
            ),
            (
                not self.per_parameter,
                "per_parameter true",
                "torch's class fills buckets up to bucket_cap_mb",
                "leave per_parameter out, or wrapper",
            ),
            (
                not self.lesson_deadlock,
                "lesson_deadlock true",
                "torch's class stops where a parameter is unused",
                "leave lesson_deadlock out, or wrapper",
            ),
        ):
            if not taken:
                raise JobSpecError(f"wrapper torch with {seen}", rule=rule, fix=fix)
        return self

    @model_validator(mode="after")
    def _a_barrier_stands_alone(self) -> Self:
        if self.sync == "barrier" and self.algorithm != BARRIER_WITH:
            raise JobSpecError(
                f"sync barrier with algorithm {self.algorithm}",
                rule="ranks meet at a barrier instead of reducing gradients, not besides",
                fix=f"write algorithm: {BARRIER_WITH}, or leave sync out",
            )
        return self

    @model_validator(mode="after")
    def _no_key_contradicts_another(self) -> Self:
        reducing = reduces(self.algorithm)
        for one, other, seen, why in (
            ("find_unused_parameters", "static_graph", self.static_graph, "finds them by itself"),
            ("lesson_deadlock", "find_unused_parameters", self.find_unused_parameters, CURE),
            ("lesson_deadlock", "static_graph", self.static_graph, CURE),
            ("lesson_deadlock", f"algorithm {self.algorithm}", not reducing, "lets nobody wait"),
        ):
            if getattr(self, one) and seen:
                raise JobSpecError(
                    f"{one} with {other}", rule=f"{other} {why}", fix=f"leave {one} out"
                )
        if not (self.no_sync or reducing):
            raise JobSpecError(
                f"no_sync false with algorithm {self.algorithm}",
                rule="it reduces nothing that no_sync could hold back",
                fix="leave no_sync out",
            )
        return self

    @property
    def is_stock(self) -> bool:
        """Whether torch's own class reduces by itself, or by a hook: nothing is ours."""
        return self.wrapper == "torch" and (self.algorithm == "native" or self.hook is not None)


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
