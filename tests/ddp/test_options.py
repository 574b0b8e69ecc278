"""Options that cannot be meant are refused with what they may be."""

from typing import Any

import pytest

from ddp.errors import UsageError
from ddp.options import TRANSPORTS, Options

GIVEN: dict[str, Any] = {
    "algorithm": "ring",
    "ring_order": "contiguous",
    "ring_seed": 0,
    "segments": "auto",
    "bucket_cap_mb": 25.0,
    "first_bucket_mb": 1.0,
    "overlap": True,
    "per_parameter": False,
    "broadcast_buffers": True,
    "gradient_as_bucket_view": True,
    "timeout_s": 5.0,
}


def test_a_transport_is_one_of_ours() -> None:
    for name in TRANSPORTS:
        Options(**GIVEN, transport=name).check(registered=True)
    with pytest.raises(UsageError, match=r"transport='tcp': one of sockets, torch"):
        Options(**GIVEN, transport="tcp").check(registered=True)
