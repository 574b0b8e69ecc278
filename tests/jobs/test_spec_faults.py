"""What is wrong with a job is told with its file, line and key, all at once."""

from pathlib import Path

import pytest

from cluster.errors import SpecError
from jobs.errors import JobSpecError
from jobs.spec import load_job
from tests.jobs.test_spec import job_file


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("name: x\ntrain:\n  lr: 1e-3\n", 3, 'train.lr: "1e-3" .text.; .*write 0.001'),
        ("name: x\ntrain:\n  steps: 1e6\n", 3, "train.steps: .*write 1000000"),
        ("name: x\ntrain:\n  steps: 5\n  steps: 6\n", 4, "train.steps: the key is there twice"),
        ("name: x\ntrain:\n\tsteps: 5\n", 3, "a tab"),
        ("name: x\nddp:\n  overlap: on\n", 3, "ddp.overlap: 'on' is read by YAML"),
        ("name: x\ndata:\n  path: 12:30\n", 3, "data.path: '12:30' is read by YAML"),
        ("name: x\ntrain:\n  seed: 010\n", 3, "train.seed: '010' is read by YAML"),
        ("name: x\ndata:\n  path: 2026-11-30\n", 3, "data.path: .*a date"),
        ("name: x\nddp:\n  bucket-cap-mb: 1\n", 3, 'ddp.bucket-cap-mb: .*"bucket_cap_mb"'),
        ("name: x\nbatch_size: 4\n", 2, "batch_size: .*belongs at data.batch_size"),
        (
            "name: x\nddp:\n  algorithm: hierachical\n",
            3,
            "unknown algorithm 'hierachical'.*write hierarchical",
        ),
        ("name: x\nmodel:\n  kind: byte-gtp\n", 3, 'model.kind: .*"byte-gpt"'),
        ("name: x\nmodel:\n  kind: 3\n", 3, "model.kind: 3 .*known: byte-gpt, deep-mlp, experts"),
        ("name: x\nmodel: 3\n", 2, "model: 3 .*must be a set of keys"),
        (
            "name: x\nmodel:\n  kind: mini-mlp\n  heads: 4\n",
            4,
            'model.heads: unknown key; "heads" is a key of kind byte-gpt; '
            "kind mini-mlp has: context, kind, width$",
        ),
        (
            "name: x\nmodel:\n  kind: mini-mlp\n  widht: 4\n",
            4,
            'model.widht: unknown key; did you mean "width"[?] kind mini-mlp has: ',
        ),
        (
            "name: x\nmodel:\n  layer-byte: 4\n",
            3,
            'model.layer-byte: .*did you mean "layer_bytes", a key of kind paced[?] kind byte-gpt',
        ),
        (
            "name: x\nmodel:\n  import: a.py:b\n  layers: 4\n",
            4,
            '"layers" is a key of kind byte-gpt or deep-mlp or resnet or paced; kind',
        ),
        ("name: x\nmodel:\n  kind: import\n", 2, "model.import: is missing"),
        ("name: x\nmodel:\n  import: 5\n", 3, "model.import: 5 .*must be text"),
        ("name: x\nmodel:\n  import: my.py\n", 3, 'model.import: "my.py"; .*"my.py:build"'),
        ("name: x\nmodel:\n  import: my:go\n", 3, 'model.import: "my:go"; .*"my.py:go"'),
        ("name: x\nmodel:\n  import: my.py:a-b\n", 3, 'model.import: .*"my.py:build"'),
        ("name: x\nmodel: {kind: paced, layer_bytes: 6}\n", 2, "model.layer_bytes: 6; .*write 8"),
        ("name: x\nmodel: {kind: paced, scale: 0}\n", 2, "model.scale: 0"),
        ("name: x\nheads: 4\n", 2, "heads: .*belongs at model.heads of kind byte-gpt"),
        (
            "name: x\nmodel: {kind: paced}\npace: {forward_ms: 1, backward_ms: 1}\n",
            1,
            "pace with model.kind paced; .*pace: null",
        ),
        ("name: x\ntrain:\n  steps: 0\n", 3, "train.steps: 0"),
        ("name: x\ntrain:\n  lr: -1.0\n", 3, "train.lr: -1.0"),
        ("name: x\ntrain:\n  lr: .inf\n", 3, "train.lr: "),
        ("name: x\ntrain:\n  steps: true\n", 3, "train.steps: true .*whole number"),
        ("name: x\nbaseline_steps: 19\n", 2, "baseline_steps: 19.*20"),
        ("name: x\nddp:\n  segments: many\n", 3, 'ddp.segments: "many".*auto'),
        ("name: x\nddp:\n  segments: 0\n", 3, "ddp.segments: 0"),
        ("name: x\nplacement: contigous\n", 2, 'placement: "contigous"'),
        ("name: x\nplacement: [0, -1]\n", 2, "placement: .*-1"),
        ("name: x\nmodel:\n  heads: 5\n", 2, "model: width 128 with 5 heads.*heads: 4"),
        ("name: x\nmodel: {width: 2147483647, heads: 2147483646}\n", 2, "write heads: 1"),
        ("name: x\nmodel: {width: 12, heads: 99}\n", 2, "write heads: 12"),
        ("name: x\ninject: {phase: nowhere, ms: 1}\n", 2, "inject.phase: .*nowhere"),
        ("name: x\npace: {forward_ms: 1}\n", 2, "pace.backward_ms: is missing"),
        ("name: x y\n", 1, "name: "),
        ("ddp: {algorithm: ring}\n", 1, "name: is missing"),
        ("name: x\nddp:\n  ring_order: shuffled\n", 2, "ddp: hierarchical with ring order"),
        ("name: x\nddp: {algorithm: ring, ring_seed: 3}\n", 2, "ddp: ring seed 3"),
        (
            "name: x\nexpects_divergence: true\nddp: {algorithm: noop, segments: 2}\n",
            3,
            "ddp: noop with .*no effect",
        ),
        (
            "expects_divergence: true\nddp: {algorithm: noop}\n"
            "inject: {phase: bucket, ms: 1}\nname: x\n",
            1,
            "inject.phase bucket with algorithm noop",
        ),
        ("name: x\ninject: {phase: data, ms: 1, bucket: 2}\n", 1, "leave inject.bucket out"),
        (
            "name: x\nexpects_divergence: true\nddp: {wrapper: torch, algorithm: noop}\n",
            3,
            "ddp: wrapper torch with algorithm noop; .*always reduces; leave wrapper out",
        ),
        ("name: x\nddp: {wrapper: torch, overlap: false}\n", 2, "with overlap false; torch's"),
        ("name: x\nddp: {wrapper: torch, per_parameter: true}\n", 2, "with per_parameter true"),
        (
            "name: x\nddp: {wrapper: torch, algorithm: native, segments: 2}\n",
            2,
            "ddp: native with a ring order, a ring seed or segments",
        ),
        (
            "name: x\nddp: {algorithm: auto, segments: 2}\n",
            2,
            "ddp: auto with a ring order, .*chooses by itself",
        ),
        (
            "name: x\nddp: {wrapper: torch, algorithm: auto}\n",
            2,
            "ddp: wrapper torch with algorithm auto; .*its own buckets.*name an algorithm",
        ),
        ("name: x\nddp: {wrapper: pytorch}\n", 2, 'ddp.wrapper: "pytorch".*torch'),
        (
            "name: x\nddp: {wrapper: torch}\ninject: {phase: bucket, ms: 1}\n",
            1,
            "inject.phase bucket with ddp.wrapper torch; .*another phase",
        ),
        ("name: x\nddp: {algorithm: noop}\n", 1, "write expects_divergence: true"),
        ("name: x\nexpects_divergence: true\n", 1, "write expects_divergence: false"),
        ("name: x\nmodel: {kind: resnet, side: 1}\n", 2, "model.side: 1"),
        ("name: x\nmodel: {kind: resnet, context: 64}\n", 2, "kind resnet has: kind, layers, side"),
        ("name: x\nmodel: {kind: experts, experts: 1}\n", 2, "model.experts: 1"),
        ("name: x\ndata: {limit_bytes: 0}\n", 2, "data.limit_bytes: 0"),
        (
            "name: x\nddp: {sync: barrier}\n",
            2,
            "ddp: sync barrier with algorithm hierarchical; .*algorithm: noop",
        ),
        ("name: x\nddp: {sync: barrier, algorithm: noop}\n", 1, "expects_divergence: true"),
        (
            "name: x\nddp: {no_sync: false}\n",
            1,
            "ddp.no_sync false with train.accumulate 1; .*write train.accumulate: 4",
        ),
        (
            "name: x\nexpects_divergence: true\ntrain: {accumulate: 2}\n"
            "ddp: {algorithm: noop, no_sync: false}\n",
            4,
            "no_sync false with algorithm noop; .*leave no_sync out",
        ),
        (
            "name: x\nddp: {find_unused_parameters: true, static_graph: true}\n",
            2,
            "find_unused_parameters with static_graph; .*leave find_unused_parameters out",
        ),
        (
            "name: x\nddp: {lesson_deadlock: true, find_unused_parameters: true}\n",
            2,
            "lesson_deadlock with find_unused_parameters; .*the cure for the deadlock",
        ),
        (
            "name: x\nddp: {lesson_deadlock: true, static_graph: true}\n",
            2,
            "lesson_deadlock with static_graph; .*the cure for the deadlock",
        ),
        (
            "name: x\nexpects_divergence: true\nddp: {lesson_deadlock: true, algorithm: noop}\n",
            3,
            "lesson_deadlock with algorithm noop; .*nobody wait",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_line(
    tmp_path: Path, text: str, line: int, expected: str
) -> None:
    path = job_file(tmp_path, text)
    with pytest.raises(SpecError, match=expected) as caught:
        load_job(path)
    assert f"{path}:{line}: " in str(caught.value)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    path = job_file(tmp_path, "name: x\ntrain:\n  steps: 1e6\n  lr: 1e-3\nnodes: 2\n")
    with pytest.raises(SpecError) as caught:
        load_job(path, ["train.warmup_steps=many"])
    assert [fault.key for fault in caught.value.faults] == [
        "train.steps",
        "train.lr",
        "nodes",
        "train.warmup_steps",
    ]


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("train.stepz=3", '"steps"'),
        ("steps=3", "belongs at train.steps"),
        ("train.steps=abc", "train.steps: .*abc"),
        ("train.steps", "no key=value pair"),
        ("train.steps=", "train.steps: nothing"),
        ("ddp.overlap=yes", "'yes' is read by YAML"),
        ("ddp.algorithm=noop", "write expects_divergence: true"),
    ],
)
def test_a_wrong_assignment_is_named(assignment: str, expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        load_job("hier", [assignment])


def test_an_unknown_job_is_named_with_the_known_and_the_nearest() -> None:
    with pytest.raises(
        JobSpecError, match=r"'heir'.*hier, leader, mini-mlp, native, no-overlap, noop.*JOB=hier"
    ):
        load_job("heir")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"gone\.yaml: there is no such file"):
        load_job(str(tmp_path / "gone.yaml"))
