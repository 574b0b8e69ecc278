"""What a job may say of an algorithm or a hook of one's own, and what is told before it starts."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import SpecError
from ddp.algorithms import find_algorithm
from jobs.errors import JobSpecError
from jobs.inputs import check_inputs
from jobs.owncode import algorithm_file, algorithm_name, algorithm_summary, can_price, own_paths
from jobs.spec import JobSpec, load_job
from tests.jobs.command import call

ROOT = Path(__file__).parents[2]
OWN = f"{ROOT}/docs/own_algorithm.py:build"
FP16 = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks:fp16_compress_hook"
FILE = """
from ddp import Schedule, Transfer, UsageError

def short(fabric):
    stage = tuple(Transfer(rank, 0, 0, True) for rank in range(1, 2))
    return Schedule(fabric.num_ranks, 1, "x", lambda: [stage])

def failing(fabric):
    return 1 // 0

def refusing(fabric):
    raise UsageError("only on Sundays")

def hook(state, bucket):
    ...

number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a file of one's own, in which the command is given."""
    (tmp_path / "mine.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(*sets: str, job: str = "hier") -> str:
    with pytest.raises(SpecError) as caught:
        load_job(job, sets)
    return str(caught.value)


def test_a_relative_path_counts_from_where_it_is_written(folder: Path) -> None:
    (folder / "below").mkdir()
    (folder / "below" / "algo.py").write_text("")
    (folder / "below" / "job.yaml").write_text('name: mine\nddp: {algorithm: "algo.py:build"}\n')
    assert load_job("below/job.yaml").ddp.algorithm == f"{folder}/below/algo.py:build"
    (folder / "below" / "job.yaml").write_text('name: mine\nddp: {hook: "algo:hook"}\n')
    assert load_job("below/job.yaml").ddp.hook == f"{folder}/below/algo:hook"
    sets = ["ddp.algorithm=below.algo:build"]
    assert load_job("hier", sets).ddp.algorithm == f"{folder}/below.algo:build"
    assert load_job("hier", [f"ddp.hook={FP16}"]).ddp.hook == FP16
    assert load_job("hier").ddp.algorithm == "hierarchical"


def test_ranks_and_nodes_are_given_what_they_can_find(folder: Path) -> None:
    """In folders of their own, and in other processes."""
    job = load_job("hier", ["ddp.algorithm=mine.py:short"])
    again = JobSpec.model_validate_json(json.dumps(job.model_dump(mode="json")))
    assert again.ddp.algorithm == f"{folder}/mine.py:short"
    assert own_paths(again.ddp) == [folder / "mine.py"]
    assert own_paths(load_job("hier", ["ddp.hook=mine:hook"]).ddp) == [folder]
    assert own_paths(load_job("hier", [f"ddp.hook={FP16}"]).ddp) == []


def test_a_hook_leaves_nothing_to_an_algorithm() -> None:
    for job, sets in (("ring", ()), ("native", ()), ("hier", ("ddp.segments=2",))):
        told = refused(f"ddp.hook={FP16}", *sets, job=job)
        assert "a hook does all the reducing, so these have no effect" in told
        assert "write algorithm: hierarchical and segments: auto" in told
    assert "is a Python file or a module, a colon" in refused("ddp.hook=nothing")


def test_what_is_no_place_is_refused_with_the_key() -> None:
    told = refused("ddp.algorithm=x y:z")
    assert "ddp.algorithm: 'x y:z'; is a Python file or a module" in told
    assert "expects_divergence" in refused(f"ddp.algorithm={OWN}", "expects_divergence=true")


@pytest.mark.parametrize(
    ("key", "place", "told"),
    [
        ("algorithm", "mine.py:gone", r"ddp\.algorithm: \S+/mine\.py: no gone in it; .*has: short"),
        ("algorithm", "gone.py:go", r"ddp\.algorithm: \S+/gone\.py: No such file"),
        ("algorithm", "mine.py:number", r"ddp\.algorithm: \S+/mine\.py: number is no function"),
        ("algorithm", "mine.py:failing", r"ddp\.algorithm: \S+/mine\.py:9: ZeroDivisionError: int"),
        ("algorithm", "mine.py:refusing", r"^ddp\.algorithm: only on Sundays$"),
        (
            "algorithm",
            "mine.py:short",
            r"ddp\.algorithm: mine:short: rank 0 ends with chunk 0 holding rank 2 0 times.*"
            r"; make proof algorithms ALGORITHM=\S+/mine\.py:short",
        ),
        ("hook", "mine.py:gone", r"ddp\.hook: \S+/mine\.py: no gone in it"),
        ("hook", "mine.py:number", r"ddp\.hook: \S+/mine\.py: number is no function"),
        ("hook", "gone:go", r"ddp\.hook: no module gone for gone"),
    ],
)
def test_what_ranks_could_not_use_is_told_before_they_start(
    folder: Path, key: str, place: str, told: str
) -> None:
    assert folder
    with pytest.raises(JobSpecError) as caught:
        check_inputs(load_job("hier", [f"ddp.{key}={place}"]), 2, 2)
    assert re.search(told, str(caught.value)), str(caught.value)


def test_what_is_right_is_called_by_its_short_name() -> None:
    spec = load_job("hier", [f"ddp.algorithm={OWN}"])
    check_inputs(spec, 2, 2)
    assert algorithm_name(spec.ddp.model_dump()) == "own_algorithm:build"
    assert algorithm_summary(spec.ddp).startswith("Everybody sends everybody a chunk")
    file = algorithm_file(spec.ddp)
    assert file is not None
    assert (file.path, file.function) == (OWN.rpartition(":")[0], "build")
    hooked = load_job("hier", [f"ddp.hook={FP16}"])
    check_inputs(hooked, 2, 2)
    assert algorithm_name(hooked.ddp.model_dump()) == "hook default_hooks:fp16_compress_hook"
    assert algorithm_file(hooked.ddp) is None
    assert algorithm_name(load_job("ring").ddp.model_dump()) == "ring"


def test_a_run_is_priced_again_while_its_file_is_what_it_was(folder: Path) -> None:
    (folder / "kept.py").write_text(Path(OWN.rpartition(":")[0]).read_text())
    name = find_algorithm("kept.py:build").name
    assert can_price({"algorithm": name})
    assert can_price({"algorithm": "ring"})
    assert not can_price({"algorithm": name[:-12] + "0" * 12})
    assert not can_price({"algorithm": "hook a.b"})


def test_algorithm_is_put_into_a_job_and_one_more_is_compared(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from jobs.cli_run import load_jobs

    code, out, _ = call(
        capsys, "run", "hier", "--algorithm", "mine.py:short", "--print-config", "--json"
    )
    assert (code, json.loads(out)["ddp"]["algorithm"]) == (0, f"{folder}/mine.py:short")
    specs: list[Any] = load_jobs(["hier", "native"], ["train.lr=0.5"], "mine.py:short")
    assert [spec.name for spec in specs] == ["hier", "native", "mine-short"]
    assert [spec.train.lr for spec in specs] == [0.5] * 3
    assert specs[2].ddp == specs[0].ddp.model_copy(update={"algorithm": f"{folder}/mine.py:short"})
