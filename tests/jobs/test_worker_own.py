"""Whole ranks over loopback whose user's own model fails: one message on all, with its line."""

from pathlib import Path

import pytest

from tests.jobs.ranks import RunRanks, arguments, assert_finished, failures, records

MODEL = """
import os
from torch import nn
from jobs.models import Model, next_byte_loss

RANK = int(os.environ.get("RANK", 0))
CALLS = []

def loss(outputs, targets):
    {loss}
    return next_byte_loss(outputs, targets)

def build(context):
    {build}
    return Model(nn.Sequential(nn.Embedding(256, 4), nn.Linear(4, 256)), loss=loss)
"""


def ranks_of(folder: Path, text: str) -> list[dict[str, object]]:
    (folder / "my.py").write_text(text)
    sets = ("model={import: 'my.py:build'}", f"model.import={folder}/my.py:build")
    return arguments(folder / "run", "hier", *sets)


def told_on_both(run_ranks: RunRanks, asked: list[dict[str, object]]) -> str:
    ranks = run_ranks(asked)
    first, second = failures(ranks)
    assert first == second
    assert "Traceback" not in first and "\n" not in first
    assert all(rank["log"].splitlines()[-1] == first for rank in ranks)
    return first


def test_an_error_in_build_on_every_rank(run_ranks: RunRanks, tmp_path: Path) -> None:
    asked = ranks_of(tmp_path, MODEL.format(loss="pass", build="x = [][context]"))
    message = told_on_both(run_ranks, asked)
    assert message.startswith(f"rank 0: model.import: {tmp_path}/my.py:14: IndexError: list index")


def test_an_error_in_build_on_one_rank_stops_both(run_ranks: RunRanks, tmp_path: Path) -> None:
    asked = ranks_of(tmp_path, MODEL.format(loss="pass", build="1 / (1 - LATER)"))
    (tmp_path / "my.py").write_text(
        (tmp_path / "my.py").read_text().replace("LATER", "(os.environ['DDPLAB_NODE'] == 'node1')")
    )
    ranks = run_ranks(asked)
    first, second = failures(ranks)
    assert first == second
    assert first.startswith(f"rank 1: model.import: {tmp_path}/my.py:14: ZeroDivisionError")
    assert "Traceback" in ranks[1]["log"] and "1 / (1 - (os" in ranks[1]["log"]
    assert "Traceback" not in ranks[0]["log"]


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_while_training_stops_both(run_ranks: RunRanks, tmp_path: Path, rank: int) -> None:
    fault = f"CALLS.append(1); assert len(CALLS) < 9 or os.environ['DDPLAB_NODE'] != 'node{rank}'"
    ranks = run_ranks(ranks_of(tmp_path, MODEL.format(loss=fault, build="pass")))
    first, second = failures(ranks)
    assert first == second
    assert first.startswith(f"rank {rank}: model.import: {tmp_path}/my.py:10: AssertionError")
    assert "Traceback" in ranks[rank]["log"] and "CALLS.append" in ranks[rank]["log"]
    phases = {event.get("phase") for event in ranks[0]["events"]}
    assert "no_network" in phases and "finish" not in phases


def test_a_loss_that_is_no_number(run_ranks: RunRanks, tmp_path: Path) -> None:
    fault = "return outputs.mean((1, 2))"
    message = told_on_both(run_ranks, ranks_of(tmp_path, MODEL.format(loss=fault, build="pass")))
    assert "model.import:" in message and "its loss gave a tensor of shape (2,)" in message


def test_different_files_on_different_ranks(run_ranks: RunRanks, tmp_path: Path) -> None:
    asked = ranks_of(tmp_path, MODEL.format(loss="pass", build="pass"))
    other = tmp_path / "other"
    other.mkdir()
    (other / "my.py").write_text(MODEL.format(loss="outputs = outputs * 2", build="pass"))
    job = asked[1]["job"]
    assert isinstance(job, dict)
    job["model"]["import"] = f"{other}/my.py:build"
    assert "rank 1 ran another file than rank 0" in told_on_both(run_ranks, asked)


def test_parameters_that_are_not_used_are_named(run_ranks: RunRanks, tmp_path: Path) -> None:
    text = MODEL.format(loss="pass", build="pass").replace(
        "return Model(nn.Sequential(", "return Model(Spare("
    )
    text += """
class Spare(nn.Sequential):
    def __init__(self, *layers):
        super().__init__(*layers)
        self.spare = nn.Linear(2, 2)

    def forward(self, x):
        return self[1](self[0](x))
"""
    message = told_on_both(run_ranks, ranks_of(tmp_path, text))
    assert "no gradient reached 'spare.bias', 'spare.weight'" in message


def test_a_model_without_layers_is_paced_as_a_whole(run_ranks: RunRanks, tmp_path: Path) -> None:
    asked = ranks_of(tmp_path, MODEL.format(loss="pass", build="pass"))
    for argument in asked:
        job = argument["job"]
        assert isinstance(job, dict)
        job["pace"] = {"forward_ms": 7.0, "backward_ms": 11.0}
    assert_finished(run_ranks(asked))
    for rank in records(tmp_path / "run"):
        assert all(record.forward_s >= 0.007 for record in rank.steps)
        assert all(record.backward_s >= 0.011 for record in rank.steps)
