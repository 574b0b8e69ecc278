import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from cluster.errors import SpecError
from cluster.yamlfile import StrictModel
from ddp.algorithms import ALGORITHMS
from jobs.errors import JobSpecError
from jobs.modelspec import OwnSpec
from jobs.spec import JobSpec, catalog, load_job, node_of

COMPARED = ("hier", "native", "noop", "ring", "ring-interleaved")


def job_file(folder: Path, text: str) -> str:
    path = folder / "job.yaml"
    path.write_text(text)
    return str(path)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, StrictModel):
        yield annotation
        for info in annotation.model_fields.values():
            yield from models_in(info.annotation)
    for inner in get_args(annotation):
        yield from models_in(inner)


def test_every_key_is_described() -> None:
    models = list(models_in(JobSpec))
    assert len(models) == 1 + 5 + 5  # the job, its sections, the kinds of models
    for model in models:
        for name, info in model.model_fields.items():
            assert info.description, f"{model.__name__}.{name}"


def test_every_key_is_read_by_somebody() -> None:
    folder = Path(__file__).parents[2] / "jobs"
    specs = ("spec.py", "modelspec.py", "sections.py")
    sources = [path.read_text() for path in folder.rglob("*.py") if path.name not in specs]
    for model in models_in(JobSpec):
        for name in model.model_fields:
            name = {"import_": "path"}.get(name, name)
            readers = re.compile(rf"\.{name}\b|\[\"{name}\"\]")
            assert any(readers.search(source) for source in sources), f"{model.__name__}.{name}"


def test_the_catalog() -> None:
    assert list(catalog()) == sorted([*COMPARED, "7b-thousandth", "deep-mlp", "mini-mlp"])
    assert all(load_job(name).name == name for name in catalog())


def test_jobs_that_differ_in_how_they_reduce_differ_in_nothing_else() -> None:
    jobs = {name: load_job(name) for name in COMPARED}
    assert {job.ddp.algorithm for job in jobs.values()} == set(ALGORITHMS)
    assert jobs["ring-interleaved"].ddp.ring_order == "interleaved"
    assert [name for name, job in jobs.items() if job.expects_divergence] == ["noop"]
    for job in jobs.values():
        assert job.pace is not None
        assert (job.pace.forward_ms, job.pace.backward_ms) == (60, 120)
        # but for the way of reducing, all are the same training
        assert (job.model, job.data, job.train) == (
            jobs["hier"].model,
            jobs["hier"].data,
            jobs["hier"].train,
        )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_job_answers_to_its_algorithm(algorithm: str) -> None:
    assert load_job(algorithm).ddp.algorithm == algorithm
    assert load_job(algorithm).ddp.ring_order == "contiguous"
    assert load_job(algorithm).name == algorithm[: len(load_job(algorithm).name)]  # hier, ring...


@pytest.mark.parametrize(
    "sets",
    [
        ["placement=[0, 1, 0, 1]", "inject={phase: bucket, ms: 5}"],
        ["model.kind=mini-mlp"],
        ["model.kind=deep-mlp", "model.layers=3"],
        ["model.kind=paced", "pace=null", "model.scale=10"],
        ["model.import=my.py:build", "model.settings={a: 1, b: [x, 0.5], c: {d: null}}"],
    ],
    ids=str,
)
def test_what_is_printed_is_read_back(tmp_path: Path, sets: list[str]) -> None:
    job = load_job("ring", sets)
    assert JobSpec.model_validate_json(json.dumps(job.model_dump(mode="json"))) == job
    file = job_file(tmp_path, yaml.safe_dump(job.model_dump(mode="json"), sort_keys=False))
    assert load_job(file) == job


def test_paths_in_a_file_count_from_the_file_and_others_from_where_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    text = "name: x\nmodel: {import: 'my.py:build'}\ndata: {path: ../text}\n"
    file = job_file(tmp_path / "jobs", text)
    job = load_job(file)
    assert isinstance(job.model, OwnSpec)
    assert (str(job.model.path), job.model.function) == (f"{tmp_path}/jobs/my.py", "build")
    assert job.data.path == f"{tmp_path}/jobs/../text"
    there = load_job("../jobs/job.yaml").model
    assert isinstance(there, OwnSpec) and there.path.resolve() == job.model.path
    job = load_job(file, ["model.import=my.py:build", "data.path=text"])
    assert isinstance(job.model, OwnSpec)
    assert str(job.model.path) == f"{tmp_path}/here/my.py"
    assert job.data.path == f"{tmp_path}/here/text"
    monkeypatch.setenv("HOME", str(tmp_path))
    job = load_job("hier", ["model.import=~/my.py:build"])
    assert isinstance(job.model, OwnSpec)
    assert str(job.model.path) == f"{tmp_path}/my.py"


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    job = load_job(job_file(tmp_path, "name: mine\nddp: {algorithm: ring}\n"))
    assert (job.name, job.ddp.algorithm, job.pace) == ("mine", "ring", None)


@pytest.mark.parametrize(("path", "absolute"), [("text", "here/text"), ("~/text", "home/text")])
def test_a_path_holds_wherever_ranks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, absolute: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert load_job("hier", [f"data.path={path}"]).data.path == str(tmp_path / absolute)


def test_set_replaces_values() -> None:
    job = load_job(
        "hier",
        [
            "train.steps=3",
            "pace=null",
            "ddp.overlap=false",
            "train.lr=0.5",
            "data.path=/some/text",
            "ddp.segments=4",
            "train.clip_norm=1",
            "placement=interleaved",
        ],
    )
    assert (job.train.steps, job.train.lr, job.train.clip_norm) == (3, 0.5, 1.0)
    assert (job.ddp.overlap, job.ddp.segments) == (False, 4)
    assert (job.pace, job.data.path, job.placement) == (None, "/some/text", "interleaved")


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
        ("name: x\nddp:\n  algorithm: hierachical\n", 3, "did you mean 'hierarchical'"),
        ("name: x\nmodel:\n  kind: byte-gtp\n", 3, 'model.kind: .*"byte-gpt"'),
        ("name: x\nmodel:\n  kind: 3\n", 3, "model.kind: 3 .*known: byte-gpt, deep-mlp, import"),
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
            '"layers" is a key of kind byte-gpt or deep-mlp or paced; kind import has',
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
        ("name: x\nddp: {algorithm: noop}\n", 1, "write expects_divergence: true"),
        ("name: x\nexpects_divergence: true\n", 1, "write expects_divergence: false"),
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
    with pytest.raises(JobSpecError, match=r"'heir'.*hier, mini-mlp, native, noop, ring.*JOB=hier"):
        load_job("heir")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"gone\.yaml: there is no such file"):
        load_job(str(tmp_path / "gone.yaml"))


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        ("contiguous", (0, 0, 1, 1)),
        ("interleaved", (0, 1, 0, 1)),
        ([1, 0, 0, 1], (1, 0, 0, 1)),
        ([0, 1, 1, 1], (0, 1, 1, 1)),
    ],
)
def test_placement(placement: str | list[int], expected: tuple[int, ...]) -> None:
    assert node_of(placement, nnodes=2, nproc_per_node=2) == expected


@pytest.mark.parametrize("placement", [[], [0, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0], [0, 0, 1, 2]])
def test_a_placement_that_does_not_fit_the_cluster(placement: list[int]) -> None:
    with pytest.raises(JobSpecError, match=r"placement: \[.*4 ranks.*\[0, 0, 1, 1\]"):
        node_of(placement, nnodes=2, nproc_per_node=2)
