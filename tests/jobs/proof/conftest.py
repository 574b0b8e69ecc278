"""Ranks of a proof are forked in these tests: they start at once, and see what a test replaced."""

import warnings
from collections.abc import Iterator

import pytest
import torch

import jobs.proof.exact
import jobs.proof.lesson
import jobs.proof.ranks


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(jobs.proof.ranks, "START_METHOD", "fork")
    for module in (jobs.proof.exact, jobs.proof.lesson):
        monkeypatch.setattr(module, "TIMEOUT_S", 5.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside torch's threads
        yield
    torch.set_num_threads(threads)
