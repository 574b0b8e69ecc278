"""What a job is: its keys, the catalog, values set by hand, and where ranks are placed."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from cluster.yamlfile import StrictModel
from ddp.algorithms import ALGORITHMS
from jobs.errors import JobSpecError
from jobs.modelspec import OwnSpec
from jobs.spec import JobSpec, catalog, load_job, node_of

COMPARED = (
    *("auto", "halving-doubling", "hier", "leader", "native", "noop", "recursive-doubling"),
    *("ring", "ring-interleaved", "star", "torch-ddp", "torch-ddp-hier"),
)
MODELS = ("7b-thousandth", "deep", "mini-mlp", "resnet-bn")
LESSONS = (
    *("per-parameter", "no-overlap", "accumulate", "accumulate-every", "barrier-only"),
    *("unused", "unused-flagged", "batch-1", "batch-16", "batch-256", "forgot-set-epoch"),
)


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
    assert len(models) == 1 + 5 + 7  # the job, its sections, the kinds of models
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
    assert list(catalog()) == sorted([*COMPARED, *MODELS, *LESSONS])
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
    names = {
        "hierarchical": "hier",
        "hierarchical_leader": "leader",
        "halving_doubling": "halving-doubling",
        "recursive_doubling": "recursive-doubling",
        "parameter_server": "star",
    }
    assert load_job(algorithm).name == names.get(algorithm, algorithm)


@pytest.mark.parametrize(
    "sets",
    [
        ["placement=[0, 1, 0, 1]", "inject={phase: bucket, ms: 5}"],
        ["model.kind=mini-mlp"],
        ["model.kind=deep-mlp", "model.layers=3"],
        ["model.kind=resnet", "model.side=4", "data.limit_bytes=900", "data.set_epoch=false"],
        ["model.kind=experts", "ddp.find_unused_parameters=true"],
        ["train.accumulate=2", "ddp.no_sync=false", "ddp.static_graph=true"],
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
