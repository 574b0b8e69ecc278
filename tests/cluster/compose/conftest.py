"""A checkout of which the nodes' image is made, for the tests about it."""

import shutil
from pathlib import Path

import pytest

from cluster.compose import image
from cluster.compose.wheels import Target

ROOT = Path(__file__).parents[3]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of which the image is made; its packages come from nowhere."""
    project = tmp_path / "project"
    (project / "images").mkdir(parents=True)
    for name in ("constraints.txt", "pyproject.toml", "images/Dockerfile"):
        shutil.copy(ROOT / name, project / name)
    monkeypatch.setattr(image, "PROJECT", project)
    monkeypatch.delenv(image.BASE_VARIABLE, raising=False)
    monkeypatch.setattr(image, "state_root", lambda *_: tmp_path)
    monkeypatch.setattr(image, "about_base", lambda *_: Target((3, 11), "x86_64", (2, 36)))
    monkeypatch.setattr(
        image, "collect", lambda pins, _, folder: (folder / "pins").write_text("\n".join(pins))
    )
    return project
