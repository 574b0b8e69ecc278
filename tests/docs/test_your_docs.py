"""docs/your-algorithm.md and docs/your-model.md: what they show is what the files are."""

import difflib
import re
import runpy
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

from ddp import Fabric
from ddp.algorithms import find_algorithm
from ddp.replay import prove
from jobs.spec import load_job

DOCS = Path(__file__).parents[2] / "docs"


def test_the_diff_is_that_of_the_files_and_has_two_lines() -> None:
    texts = [(DOCS / "your_model" / name).read_text() for name in ("train.py", "train_ddplab.py")]
    stock, ours = (text.splitlines() for text in texts)
    lines = list(difflib.unified_diff(stock, ours, lineterm=""))[2:]
    (shown,) = re.findall(r"```diff\n(.*?)```", (DOCS / "your-model.md").read_text(), re.DOTALL)
    assert shown.splitlines() == lines
    changed = [line[0] for line in lines if line[0] in "+-"]
    assert changed == ["-", "+", "-", "+"]


def test_every_sample_is_evaluated_once_whatever_the_number_of_ranks() -> None:
    """Of 21 samples a sampler would give 2 ranks 22, and 4 ranks 24."""
    share_of = runpy.run_path(str(DOCS / "your_model" / "train.py"))["share_of"]
    samples = TensorDataset(torch.arange(21))
    for num_ranks in (1, 2, 4, 30):
        shares = [share_of(samples, rank, num_ranks) for rank in range(num_ranks)]
        seen = [int(value) for share in shares for (value,) in share]
        assert sorted(seen) == list(range(21)), num_ranks


def test_the_algorithm_is_that_of_the_file() -> None:
    text = (DOCS / "your-algorithm.md").read_text()
    (shown,) = re.findall(r"<!-- own_algorithm.py -->\n```python\n(.*?)```", text, re.DOTALL)
    assert (DOCS / "own_algorithm.py").read_text().endswith('\n"""\n\n' + shown)


def test_the_algorithm_sends_what_its_document_says() -> None:
    """One stage of adding into the owners, one of sharing; every pair of ranks, both ways."""
    build = find_algorithm(f"{DOCS}/own_algorithm.py:build").build
    assert build is not None
    schedule = build(Fabric((0, 0, 1, 1)), "contiguous", 0)
    prove(schedule)
    stages = [[(it.src, it.dst, it.reduce) for it in stage] for stage in schedule]
    assert [len(stage) for stage in stages] == [12, 12]
    pairs = {(src, dst) for src in range(4) for dst in range(4) if src != dst}
    assert {(src, dst) for src, dst, reduce in stages[0] if reduce} == pairs
    assert {(src, dst) for src, dst, reduce in stages[1] if not reduce} == pairs


def test_the_job_of_the_document_is_one(tmp_path: Path) -> None:
    text = (DOCS / "your-algorithm.md").read_text()
    for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
        named = block if "name:" in block else f"name: mine\n{block}"
        (tmp_path / "job.yaml").write_text(named)
        spec = load_job(str(tmp_path / "job.yaml")).ddp
        assert spec.algorithm == f"{tmp_path}/my.py:build" or spec.hook is not None
