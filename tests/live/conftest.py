"""What several live tests need of the machine."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from cluster.compose.engine import Engine
from cluster.compose.image import ensure_image


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """The Docker engine, with the nodes' image there."""
    found = Engine.connect()
    ensure_image(found, nullcontext)
    yield found
    found.api.close()
