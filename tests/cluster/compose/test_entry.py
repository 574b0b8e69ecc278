"""What a container's first program makes of its variables."""

import re

import pytest

from cluster.compose.entry import links_from
from cluster.compose.file import COMPOSE_FILE
from cluster.errors import UnitError

WORDS = ("RATE", "MTU", "DELAY", "JITTER", "LOSS", "INTRA_RATE")
PLAIN = {
    f"DDPLAB_{word}": value
    for word, value in re.findall(r"\$\{DDPLAB_(\w+):-([^}]+)\}", COMPOSE_FILE.read_text())
    if word in WORDS
}
"""What the file says where nobody set anything."""


def test_the_file_by_itself_asks_for_200_mbit_both_ways_and_nothing_else() -> None:
    links = links_from(PLAIN)
    assert links.inter_node.rate_bits_per_s == 200_000_000
    assert links.inter_node.mtu == 1500
    assert not links.inter_node.needs_netem
    assert links.intra_node.rate_bits_per_s is None


def test_every_variable_has_its_place() -> None:
    asked = ("1gbit", "9000", "5ms", "2ms", "0.1%", "3gbit")
    links = links_from({f"DDPLAB_{word}": text for word, text in zip(WORDS, asked, strict=True)})
    nic = links.inter_node
    assert (nic.rate_bits_per_s, nic.mtu) == (1_000_000_000, 9000)
    assert (nic.delay_s, nic.jitter_s, nic.loss_ratio) == (0.005, 0.002, 0.001)
    assert links.intra_node.rate_bits_per_s == 3_000_000_000


@pytest.mark.parametrize(
    ("word", "value", "told"),
    [
        ("RATE", "1gbps", "write 1gbit (bits), or 1GB/s"),
        ("RATE", "", "is not a rate"),
        ("INTRA_RATE", "7", "it has no unit"),
        ("MTU", "big", "valid integer"),
        ("MTU", "100", "greater than or equal to 576"),
        ("LOSS", "5", "write 0.1%"),
        ("JITTER", "3ms", "more than the delay"),
    ],
)
def test_what_cannot_be_read_is_told_by_the_name_that_was_set(
    word: str, value: str, told: str
) -> None:
    with pytest.raises(UnitError) as caught:
        links_from({**PLAIN, f"DDPLAB_{word}": value})
    assert f"DDPLAB_{word}={value}" in str(caught.value)
    assert told in str(caught.value)
    assert "pydantic" not in str(caught.value)
