"""Calls `ddplab` inside a test, and holds what it prints against a contract."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jobs.cli import main

SCHEMAS = Path(__file__).with_name("schemas")


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error; fails on a traceback."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


def valid(document: str | dict[str, Any], contract: str) -> dict[str, Any]:
    """The document, if it satisfies the contract `schemas/<contract>.json`."""
    found: dict[str, Any] = json.loads(document) if isinstance(document, str) else document
    jsonschema.validate(found, json.loads((SCHEMAS / f"{contract}.json").read_text()))
    return found
