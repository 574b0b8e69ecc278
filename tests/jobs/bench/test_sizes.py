"""Sizes as people write them: what is read, what could mean two things, and ranges."""

import pytest

from jobs.bench.sizes import MOST_SIZES, parse_size, parse_sizes, size_range, size_words
from jobs.estimate.amounts import AmountError

READ = {
    "8": 8,
    "16B": 16,
    "64K": 65_536,
    "64k": 65_536,
    "64KiB": 65_536,
    "4M": 4_194_304,
    "4 MiB": 4_194_304,
    "1G": 1_073_741_824,
    "0.5GiB": 536_870_912,
    "32MB": 32_000_000,
    "1.5kB": 1_500,
    "1GB": 1_000_000_000,
}
REFUSED = {
    "": "no size",
    "0": "0 bytes",
    "-4M": "no size",
    "1.5": "1.5 bytes",
    "1e6": "'e6'; |no size",
    "4mb": "bits or bytes",
    "4Mb": "bits or bytes",
    "4kb": "bits or bytes",
    "4mbit": "bits or bytes",
    "4X": "no unit",
    "4TiB": "no unit",
    "9" * 30: "no size",
    "2000GiB": "bytes",
}


@pytest.mark.parametrize(("text", "num_bytes"), READ.items())
def test_what_is_read(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize(("text", "why"), REFUSED.items())
def test_what_is_refused(text: str, why: str) -> None:
    with pytest.raises(AmountError, match=why) as caught:
        parse_size(text)
    assert caught.value.rule and caught.value.fix


def test_the_fix_for_bits_or_bytes_is_readable_itself() -> None:
    with pytest.raises(AmountError) as caught:
        parse_size("4mb")
    assert caught.value.fix == ("write 4MiB (powers of 1024), or 4MB (of 1000)",)
    assert (parse_size("4MiB"), parse_size("4MB")) == (4_194_304, 4_000_000)


def test_a_list_has_each_size_once_in_the_order_asked() -> None:
    assert parse_sizes("4M, 64K 4MiB,8") == (4_194_304, 65_536, 8)
    with pytest.raises(AmountError, match="empty"):
        parse_sizes(" , ")


def test_a_range_as_nccl_tests_has_it() -> None:
    assert size_range(8, 128, 2) == (8, 16, 32, 64, 128)
    assert size_range(8, 127, 4) == (8, 32)
    assert size_range(100, 100, 2) == (100,)


def test_ranges_that_are_none() -> None:
    with pytest.raises(AmountError, match="MINBYTES=4 MiB, MAXBYTES=64 KiB") as caught:
        size_range(4 << 20, 64 << 10, 2)
    assert caught.value.fix == ("MINBYTES=64KiB MAXBYTES=4MiB",)
    for factor in (1.0, 0.5, -2.0, float("nan"), float("inf")):
        with pytest.raises(AmountError, match="STEPFACTOR"):
            size_range(8, 64, factor)
    with pytest.raises(AmountError, match=f"more than {MOST_SIZES}"):
        size_range(1, 10**12, 1.01)


@pytest.mark.parametrize("text", ["4 MiB", "32 MB", "64 KiB", "16 B", "1,537 B", "1 kB", "1 GiB"])
def test_words_say_it_exactly(text: str) -> None:
    num_bytes = parse_size(text.replace(",", ""))
    assert size_words(num_bytes) == text
