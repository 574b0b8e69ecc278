"""data.limit_bytes: how much of a text is read."""

import hashlib
from pathlib import Path

import pytest

from jobs import text as text_module
from jobs.errors import DataError
from jobs.spec import DataSpec
from jobs.text import load_data, load_text


def test_no_more_is_read_than_the_limit(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"12345")
    (tmp_path / "c").symlink_to(tmp_path / "gone")  # never reached
    text = load_text(str(tmp_path), 7)
    assert text.content == b"1234512"
    assert text.sha256 == hashlib.sha256(b"1234512").hexdigest()
    assert text.source == f"the first 7 bytes of {tmp_path}"
    assert load_text(str(tmp_path), 10).content == b"1234512345"
    assert load_data(DataSpec(path=str(tmp_path / "a"), limit_bytes=3)).content == b"123"
    whole = load_data(DataSpec(path=str(tmp_path / "a"), limit_bytes=50))
    assert (whole.content, whole.source) == (b"12345", f"{tmp_path}/a")
    usual = load_text(None, 1000)
    assert usual.content == load_text(None).content[:1000]


def test_a_limit_makes_room_for_what_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(bytes(2 << 20))
    monkeypatch.setattr(text_module, "MAX_TEXT_BYTES", 1 << 20)
    assert len(load_text(str(tmp_path), 1 << 20).content) == 1 << 20
    with pytest.raises(DataError, match=r"more than 1 MiB.*set data\.limit_bytes"):
        load_text(str(tmp_path), (1 << 20) + 1)
