"""Rates, durations, shares and memory: what is read, and what is refused with both meanings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import UnitError
from cluster.units import (
    format_duration,
    format_memory,
    format_rate,
    format_share,
    parse_duration,
    parse_memory,
    parse_optional_rate,
    parse_rate,
    parse_share,
)


@pytest.mark.parametrize(
    ("text", "bits_per_s"),
    [
        ("200mbit", 200_000_000),
        ("1gbit", 1_000_000_000),
        ("1.5gbit", 1_500_000_000),
        ("8000000bit", 8_000_000),
        ("2000kbit", 2_000_000),
        ("200 Mbit/s", 200_000_000),
        ("25MB/s", 200_000_000),
        ("1GB/s", 8_000_000_000),
        ("500KB/s", 4_000_000),
        ("125000B/s", 1_000_000),
    ],
)
def test_reads_rates(text: str, bits_per_s: int) -> None:
    assert parse_rate(text) == bits_per_s


@pytest.mark.parametrize(
    ("text", "one_meaning", "other_meaning"),
    [
        ("1gbps", "1gbit", "1GB/s"),
        ("200mbps", "200mbit", "200MB/s"),
        ("200Mb", "200mbit", "200MB/s"),
        ("200mb/s", "200mbit", "200MB/s"),
        ("200M", "200mbit", "200MB/s"),
        ("100", "100mbit", "100MB/s"),
        ("100mibit", "100mbit", "104857600bit"),
        ("100MiB/s", "100mbit", "104857600B/s"),
        ("1Gibps", "1gbit", "1073741824bit"),
        ("1e9", "200mbit", "25MB/s"),
        ("1e9bit", "200mbit", "25MB/s"),
        ("fast", "200mbit", "25MB/s"),
        ("", "200mbit", "25MB/s"),
        ("100tbit", "1000gbit", "unlimited"),
        ("0.5tbit", "500gbit", ""),
        ("0.1TB/s", "800gbit", ""),
        ("1_000mbit", "1000mbit", ""),
        ("\u0662\u0660\u0660mbit", "200mbit", "25MB/s"),
        ("0", "unlimited", "unlimited"),
        ("0mbit", "1mbit", "unlimited"),
        ("-5mbit", "5mbit", "unlimited"),
        ("1kbit", "1mbit", "unlimited"),
        ("1001gbit", "1000gbit", "unlimited"),
        ("1234567bit", "1234.568kbit", "1234.568kbit"),
    ],
)
def test_refuses_with_value_rule_and_both_meanings(
    text: str, one_meaning: str, other_meaning: str
) -> None:
    with pytest.raises(UnitError) as caught:
        parse_rate(text)
    error = caught.value
    assert repr(text) in error.message
    assert error.rule
    assert one_meaning in error.fix[0]
    assert other_meaning in error.fix[0]


@pytest.mark.parametrize("value", [200, 1e9, True, None, ["200mbit"]])
def test_refuses_what_is_no_text(value: object) -> None:
    with pytest.raises(UnitError):
        parse_rate(value)


@given(st.integers(min_value=125_000, max_value=10**11))
def test_rates_survive_being_written(bytes_per_s: int) -> None:
    assert parse_rate(format_rate(bytes_per_s * 8)) == bytes_per_s * 8


def test_every_suggested_rate_can_be_read() -> None:
    """A fix that is itself refused would be no fix."""
    for text in ("1gbps", "200Mb", "100", "100mibit", "100MiB/s", "1234567bit", "0mbit"):
        with pytest.raises(UnitError) as caught:
            parse_rate(text)
        words = caught.value.fix[0].replace(",", " ").replace("(", " ").replace(")", " ").split()
        rates = [word for word in words if word[0].isdigit() and not word.isdigit()]
        assert rates
        for rate in rates:
            assert parse_rate(rate) > 0


def test_unlimited_is_no_number() -> None:
    assert parse_optional_rate("unlimited") is None
    assert format_rate(None) == "unlimited"


@pytest.mark.parametrize(("text", "seconds"), [("10ms", 0.01), ("250us", 0.00025), ("1.5s", 1.5)])
def test_reads_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize("text", ["10", "10 m", "-1ms", "1min", 10, "1e3ms"])
def test_refuses_durations(text: object) -> None:
    with pytest.raises(UnitError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(("text", "ratio"), [("0.1%", 0.001), ("0%", 0.0), ("12.5%", 0.125)])
def test_reads_shares(text: str, ratio: float) -> None:
    assert parse_share(text) == ratio
    assert parse_share(format_share(ratio)) == ratio


@pytest.mark.parametrize("text", ["0.1", "100%", "-1%", 0.1, "1e-3%"])
def test_refuses_shares(text: object) -> None:
    with pytest.raises(UnitError, match="share"):
        parse_share(text)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("2GB", 2_000_000_000),
        ("1.5GB", 1_500_000_000),
        ("512MB", 512_000_000),
        ("512 MiB", 536_870_912),
        ("2GiB", 2_147_483_648),
        ("100MB", 100_000_000),
    ],
)
def test_reads_memory(text: str, num_bytes: int) -> None:
    assert parse_memory(text) == num_bytes


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("2g", "write 2GB (powers of 1000) or 2GiB (of 1024)"),
        ("2gb", "write 2GB (powers of 1000) or 2GiB (of 1024)"),
        ("512M", "write 512MB (powers of 1000) or 512MiB (of 1024)"),
        ("512mib", "write 512MB (powers of 1000) or 512MiB (of 1024)"),
        ("2147483648", "write 2GB"),
        (2, "write 2GB"),
        (None, "write 2GB"),
        ("-2GB", "write 2GB"),
        ("2TB", "write 2GB"),
        ("99MB", "100MB or more"),
        ("0GB", "100MB or more"),
        ("9" * 400, "write 2GB"),
    ],
)
def test_refuses_memory_that_could_be_two_amounts_or_none(text: object, fix: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse_memory(text)
    assert caught.value.fix[0].startswith(fix)
    assert caught.value.rule


@given(st.integers(min_value=100_000_000, max_value=10**13))
def test_memory_is_written_as_it_is_read(num_bytes: int) -> None:
    assert parse_memory(format_memory(num_bytes)) == num_bytes


def test_memory_is_written_in_the_unit_it_is_whole_in() -> None:
    assert [format_memory(each) for each in (2 * 10**9, 2**31, 512 * 10**6, 2**29)] == [
        "2GB",
        "2GiB",
        "512MB",
        "512MiB",
    ]
