"""Code of one's own by import path: where it is found, what is refused, and who is blamed."""

import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddp.errors import OwnCodeError
from ddp.importpath import ImportPath, is_import_path, is_pinned, parse
from ddp.source import MARK, blame, load

TEXT = "CALLS = []\n\ndef go(x):\n    return 6 / x\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that the process is in; what is imported from it is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def fails(text: str) -> str:
    with pytest.raises(OwnCodeError) as caught:
        load(text, "key")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_runs_once_and_is_found_again_by_what_it_is_called(folder: Path) -> None:
    (folder / "my.py").write_text("import random\nDRAWN = random.random()\n" + TEXT)
    first = load("my.py:go", "key")
    again = load(f"{folder}/my.py:go", "key")
    assert first.value is again.value
    assert first.value(3) == 2.0
    sha256 = hashlib.sha256((folder / "my.py").read_bytes()).hexdigest()
    assert (first.path, first.sha256) == (f"{folder}/my.py", sha256)
    assert str(first.where) == f"{folder}/my.py:go@{sha256[:12]}"
    assert first.where.short == "my:go"
    (folder / "my.py").unlink()  # what was loaded stays, under its hash
    assert load(str(first.where), "key").value is first.value


def test_a_file_that_has_changed_is_another_one(folder: Path) -> None:
    (folder / "my.py").write_text(TEXT)
    first = load("my.py:go", "key")
    (folder / "my.py").write_text(TEXT.replace("6", "8"))
    second = load("my.py:go", "key")
    assert (first.value(2), second.value(2)) == (3.0, 4.0)
    assert load(str(first.where), "key").value is first.value
    for name in [name for name in sys.modules if MARK in vars(sys.modules[name])]:
        del sys.modules[name]  # as in another process
    told = fails(str(first.where))
    assert (
        f"{folder}/my.py is not what it was: its SHA-256 begins with {second.sha256[:12]}" in told
    )
    assert f"not {first.sha256[:12]}" in told


def test_a_module_is_found_below_the_folder_and_where_python_looks(folder: Path) -> None:
    (folder / "packed").mkdir()
    (folder / "packed" / "__init__.py").write_text("")
    (folder / "packed" / "algo.py").write_text("from packed.more import SIX\n" + TEXT)
    (folder / "packed" / "more.py").write_text("SIX = 6\n")
    found = load("packed.algo:go", "key")
    assert str(found.where) == f"{folder}/packed.algo:go@{found.sha256[:12]}"
    assert found.where.short == "algo:go"
    assert load(str(found.where), "key").value is found.value
    known = load("json:dumps", "key")
    assert str(known.where) == f"json:dumps@{known.sha256[:12]}"


def test_another_module_of_the_name_is_no_answer(folder: Path) -> None:
    (folder / "json").mkdir()
    (folder / "json" / "__init__.py").write_text("def dumps(): ...\n")
    told = fails("json:dumps")
    assert re.search(rf"json is \S+/json/__init__\.py; a module below {folder}", told)


@pytest.mark.parametrize(
    "text", ["a b:c", ":go", "my.py:", "my.py", "my.py:go now", "a/b c:go", "my.py:go@xyz", "a\n:b"]
)
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(OwnCodeError, match=r'write "path/to/my\.py:build" or'):
        parse(text)


def test_names_and_places_are_told_apart() -> None:
    assert [is_import_path(text) for text in ("ring", "hook a.b", "a:b")] == [False, False, True]
    assert [is_pinned(f"my.py:go{pin}") for pin in ("", "@0123456789ab", "@0")] == [
        False,
        True,
        False,
    ]
    assert parse("a/b.py:c@0123456789ab") == ImportPath("a/b.py", "c", "0123456789ab")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("my.py:go", None, r"key: \S+/my\.py: No such file"),
        ("my.py:gone", TEXT, r"my\.py: no gone in it; .*has: go; write .*my\.py:go"),
        ("my.py:CALLS", TEXT, r"my\.py: CALLS is no function"),
        ("my.py:go", "x = 1\n1 / 0\n", r"key: \S+/my\.py:2: ZeroDivisionError: division by zero"),
        ("my.py:go", "import sys\nsys.exit(3)\n", r"key: \S+/my\.py:2: SystemExit: 3"),
        ("my.py:go", "def go(:\n", r"key: \S+/my\.py:1: SyntaxError: .*py_compile"),
        ("my.py:go", "import not_there\n", r"my\.py:1: ModuleNotFoundError: .*install it beside"),
        ("mine:go", "x = 1\n1 / 0\n", r"key: \S+/mine\.py:2: ZeroDivisionError"),
        ("mine:go", "def go(:\n", r"key: \S+/mine\.py:1: SyntaxError"),
        ("mine:go", "import not_there\n", r"mine\.py:1: ModuleNotFoundError: .*install it beside"),
        ("mine:go", None, "key: no module mine for mine; a module lies in the folder"),
        ("mine.sub:go", TEXT, r"key: no module mine(\.sub)? for mine\.sub"),
    ],
)
def test_what_goes_wrong_is_one_line(folder: Path, name: str, content: Any, told: str) -> None:
    if content is not None:
        (folder / f"{re.split('[.:]', name)[0]}.py").write_text(content)
    message = fails(name)
    assert re.search(told, message), message


def test_a_file_that_failed_runs_again(folder: Path) -> None:
    """Nothing of it stays behind."""
    (folder / "my.py").write_text("import os\n1 / int(os.environ['DIVISOR'])\ndef go(): return 5\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIVISOR", "0")
        assert "ZeroDivisionError" in fails("my.py:go")
        patch.setenv("DIVISOR", "1")
        assert load("my.py:go", "key").value() == 5


def test_what_it_raises_later_is_told_with_its_line(folder: Path) -> None:
    (folder / "my.py").write_text(TEXT)
    with pytest.raises(ZeroDivisionError) as caught:
        load("my.py:go", "some key").value(0)
    assert str(blame(caught.value)) == (
        f"some key: {folder}/my.py:4: ZeroDivisionError: division by zero"
    )
