"""MAX_SLOWDOWN: a slowdown fails a comparison, noise does not."""

import pytest

from jobs.compare.comparison import compare
from jobs.compare.gate import GateResult, failed_gate, gates, parse_limit
from jobs.errors import CompareError
from tests.jobs.compare_samples import compared

BASE = ((100, 100), (100, 100), (100, 100))


def found(*rounds: tuple[float, ...], limit: float = 0.05) -> GateResult:
    runs = [compared("ring", *BASE[: len(rounds)]), compared("hier", *rounds)]
    return GateResult(limit, gates(compare(runs, "ring", alike=True), limit))


@pytest.mark.parametrize(("text", "limit"), [("5%", 0.05), (" 2.5 % ", 0.025), ("0%", 0.0)])
def test_a_limit_is_a_share(text: str, limit: float) -> None:
    assert parse_limit(text) == pytest.approx(limit)


@pytest.mark.parametrize("text", ["5", "0.05", "-5%", "five", "5%%", ""])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(CompareError, match="MAX_SLOWDOWN=") as caught:
        parse_limit(text)
    assert caught.value.fix == ("MAX_SLOWDOWN=5%",)


def test_a_job_that_is_surely_slower_by_more_fails() -> None:
    result = found((110, 110), (111, 111), (110, 110))
    (gate,) = result.gates
    assert gate.verdict == "slower"
    assert gate.slowdown == pytest.approx(0.1033, abs=1e-4)
    assert 0.05 < gate.low < gate.slowdown < gate.high
    error = failed_gate(result, "ring")
    assert error is not None
    assert error.message == "hier is 10.3% slower than ring"
    assert error.rule == "MAX_SLOWDOWN=5%"


def test_a_job_that_may_be_slower_by_chance_does_not() -> None:
    result = found((90, 90), (130, 130), (110, 110))
    assert [gate.verdict for gate in result.gates] == ["unsure"]
    assert failed_gate(result, "ring") is None


@pytest.mark.parametrize("ms", [104, 100, 60])
def test_within_the_limit(ms: float) -> None:
    result = found((ms, ms), (ms, ms), (ms, ms))
    assert [gate.verdict for gate in result.gates] == ["within"]
    assert failed_gate(result, "ring") is None


def test_one_round_cannot_tell() -> None:
    with pytest.raises(CompareError, match="one round"):
        found((110, 110))
