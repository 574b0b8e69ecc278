from pathlib import Path

import pytest

from jobs.errors import DataError, ModelError
from jobs.inputs import check_inputs
from jobs.spec import load_job


def test_what_there_is_to_read_is_enough(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(bytes(8 * 64 * 4 + 1))
    (tmp_path / "my.py").write_text("raise SystemExit('it ran')\n")
    for sets in ([], [f"data.path={tmp_path}/text"], [f"model.import={tmp_path}/my.py:build"]):
        check_inputs(load_job("hier", sets), 2, 2)


@pytest.mark.parametrize(
    ("assignment", "error", "told"),
    [
        ("data.path={}/gone", DataError, "gone: not found"),
        ("data.path={}/text", DataError, "text: 2,000 bytes, 31 windows"),
        ("data.limit_bytes=300", DataError, "the first 300 bytes of the Python .*4 windows"),
        ("model.import={}/gone.py:build", ModelError, r"gone\.py: No such file"),
        ("model.import={}/broken.py:build", ModelError, r"broken\.py:2: SyntaxError"),
        ("model.import={}/folder.py:build", ModelError, r"folder\.py: no ordinary file"),
    ],
)
def test_what_ranks_could_not_use_is_told_before(
    tmp_path: Path, assignment: str, error: type[Exception], told: str
) -> None:
    (tmp_path / "text").write_bytes(bytes(2_000))
    (tmp_path / "broken.py").write_text("x = 1\ny = = 2\n")
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(error, match=told):
        check_inputs(load_job("hier", [assignment.format(tmp_path)]), 2, 2)
