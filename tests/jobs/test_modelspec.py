"""Kinds of models in a job file: each with keys of its own, chosen in the file or by SET."""

from pathlib import Path
from typing import get_args

import pytest

from cluster.errors import SpecError
from jobs.modelspec import MiniMlpSpec, OwnSpec, PacedSpec
from jobs.spec import JobSpec, compute_scaled, load_job

KINDS = ("byte-gpt", "mini-mlp", "deep-mlp", "resnet", "experts", "paced", "import")


def test_the_kinds_of_models() -> None:
    members = [get_args(each)[0] for each in get_args(JobSpec.model_fields["model"].annotation)]
    assert [member.model_fields["kind"].default for member in members] == list(KINDS)


KEYS = {
    "byte-gpt": {"layers", "width", "heads", "context"},
    "mini-mlp": {"width", "context"},
    "deep-mlp": {"layers", "width", "context"},
    "resnet": {"layers", "width", "side"},
    "experts": {"experts", "width", "context"},
    "paced": {"layers", "layer_bytes", "layer_forward_ms", "layer_backward_ms", "scale"},
}


@pytest.mark.parametrize("kind", KEYS)
def test_another_kind_of_model_has_its_own_keys_and_defaults(kind: str) -> None:
    """The file's keys were those of its own kind."""
    changed = load_job("hier", [f"model.kind={kind}", "pace=null"]).model
    document = changed.model_dump()
    assert document.pop("kind") == kind
    assert set(document) == KEYS[kind]
    if kind != "byte-gpt":
        assert changed == type(changed)()


def test_setting_the_kind_that_it_has_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: x\nmodel: {kind: mini-mlp, width: 5}\n")
    assert load_job(str(file), ["model.kind=mini-mlp"]) == load_job(str(file))


@pytest.mark.parametrize(
    "sets",
    [
        ["model.width=32", "model.kind=mini-mlp"],
        ["model.kind=mini-mlp", "model.width=32"],
        ["model.kind=paced", "model.width=32", "model.kind=mini-mlp"],
        ["model={kind: mini-mlp}", "model.width=32"],
    ],
    ids=str,
)
def test_a_key_that_is_set_counts_wherever_the_kind_is_set(sets: list[str]) -> None:
    assert load_job("hier", sets).model == MiniMlpSpec(width=32)


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        (["model.heads=2", "model.kind=mini-mlp"], "set model.heads=2: model.heads: unknown key"),
        (["model={heads: 2}", "model.kind=mini-mlp"], r"model.heads: .*is a key of kind byte-gpt"),
        (["model.import=a.py:b", "model.kind=paced"], r'model.import: .*"import" is a key of kind'),
        (["model.kind=import"], "set model.kind=import: model.import: is missing"),
        (["model.kind=paced"], "pace with model.kind paced"),
    ],
)
def test_a_key_that_is_set_is_never_dropped(sets: list[str], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        load_job("hier", sets)


def test_a_model_of_ones_own_by_set() -> None:
    job = load_job("hier", ["model.settings.width=3", "model.import=/my.py:go"])
    assert job.model == OwnSpec.model_validate({"import": "/my.py:go", "settings": {"width": 3}})
    kept = load_job("hier", ["model={import: '/a.py:b', context: 9}", "model.import=/c.py:d"])
    assert kept.model == OwnSpec.model_validate({"import": "/c.py:d", "context": 9})


def test_the_thousandth_is_a_thousandth() -> None:
    """The notes' 14 GB of gradients a step, 25 GB/s between nodes and 0.5 s of computing."""
    job = load_job("7b-thousandth")
    assert isinstance(job.model, PacedSpec)
    assert job.model.layers * job.model.layer_bytes * job.model.scale == 14_000_000_000
    assert 200_000_000 / 8 * job.model.scale == 25_000_000_000
    assert sum(job.floors_ms or ()) == 500
    for algorithm in ("ring", "native", "hierarchical"):
        assert load_job("7b-thousandth", [f"ddp.algorithm={algorithm}"]).model == job.model


def test_compute_scaled() -> None:
    assert compute_scaled(load_job("hier"), 0.25).floors_ms == (15, 30)
    assert compute_scaled(load_job("7b-thousandth"), 2).floors_ms == (320, 680)
    unpaced = load_job("hier", ["pace=null"])
    assert (compute_scaled(unpaced, 2), unpaced.floors_ms) == (unpaced, None)


def test_a_model_of_ones_own_is_written_as_it_is_read() -> None:
    model = load_job("hier", ["model.import=/my.py:go", "model.context=5"]).model
    written = {"kind": "import", "import": "/my.py:go", "context": 5, "settings": {}}
    assert model.model_dump(mode="json") == written
