"""The screen of a comparison at every width: the table, its legend, and what it says of noise."""

from collections.abc import Sequence

import pytest

from jobs.compare.comparison import ComparedRun, Comparison, compare
from jobs.compare.gate import GateResult, gates
from jobs.compare.stats import Estimate
from jobs.report.compare_screen import closing_screen, kept_lines, next_lines, times
from jobs.report.compare_words import sentences
from tests.jobs.compare_samples import compared, prediction_of, run_of
from tests.jobs.samples import flat, text_of

WIDTHS = (80, 100, 120)
RING = ((351, 343), (377, 350), (351, 343))
HIER = ((285, 275), (308, 284), (285, 276))
NATIVE = ((355, 345), (382, 353), (356, 347))
NOISY = ((300, 500), (700, 250), (340, 290))


def three() -> Comparison:
    """ring, hier and native, as in a lab of 200 Mbit/s."""
    many = zip(("ring", "hier", "native"), (RING, HIER, NATIVE), strict=True)
    runs = [
        compared(job, *rounds, baseline_ms=198, prediction=prediction_of()) for job, rounds in many
    ]
    return compare(runs, "native", alike=True)


def screen(comparison: Comparison, width: int, differences: Sequence[str] = ()) -> str:
    return text_of(closing_screen(comparison, None, differences, width), width)


def rows_of(
    text: str, labels: Sequence[str] = ("hier", "ring", "native", "no network")
) -> list[str]:
    lines = text.splitlines()
    return [next(line for line in lines if line.startswith(f"  {label} ")) for label in labels]


@pytest.mark.parametrize("width", WIDTHS)
def test_no_number_is_cut_at_any_width(width: int) -> None:
    hier, ring, native, alone = rows_of(screen(three(), width))
    for row, step, sent, ratio in (
        (hier, "286", "1.00", "1.25 +- 0.0"),
        (ring, "353", "1.50", "1.01 +- 0.0"),
        (native, "356", "1.53 *", "1 "),
        (alone, "198", "0", ""),
    ):
        assert step in row
        assert sent in row
        assert ratio in row
    assert alone.endswith("100 %")
    assert "..." not in hier + ring + native


def test_narrow_screens_drop_columns_and_their_words() -> None:
    narrow, usual, wide = (screen(three(), width) for width in WIDTHS)
    assert "8 of 10" not in narrow
    assert "at most" not in narrow
    assert "8 of 10" in usual
    assert "at most      native's step / this job's step if" in usual
    assert "loss" not in rows_heads(usual)
    assert "loss" in rows_heads(wide)


def rows_heads(text: str) -> str:
    return "\n".join(text.splitlines()[:4])


@pytest.mark.parametrize("width", WIDTHS)
def test_the_words_of_the_table_are_explained(width: int) -> None:
    words = flat(screen(three(), width))
    assert "STEP mean of 6 steps, each as long as its slowest rank took" in words
    assert "no network the same computing with nothing sent: the goal, not a way to train" in words
    assert "(bootstrap over the 3 rounds)" in words
    assert "* counted by the node's NIC, headers included" in words


def test_checks_tell_what_is_equal_and_what_is_not() -> None:
    words = flat(screen(three(), 100))
    assert "within each job all 4 ranks hold equal parameters." in words
    assert "Loss after 6 steps: 3.500 in all (within 0.1 % of one another at every step)." in words
    assert "Between jobs the last bits differ: each adds in another order. That is right." in words


def test_the_winner_and_its_bytes() -> None:
    first, *_, last = sentences(three())
    assert first == (
        "hier is 1.25 times as fast as native here: a node sends 1.02 MB a step instead of "
        "1.53 MB, headers included."
    )
    runs = [compared("ring", *RING), compared("hier", *HIER)]
    assert sentences(compare(runs, "ring", alike=True))[0] == (
        "hier is 1.23 times as fast as ring here: a node sends 1.00 MB a step instead of 1.50 MB."
    )
    assert last.startswith("At 1 Gbit/s")


def test_the_base_may_be_the_winner() -> None:
    runs = [compared("ring", *RING), compared("hier", *HIER)]
    assert sentences(compare(runs, "hier", alike=True))[0] == (
        "hier is 1.23 times as fast as ring here: a node sends 1.00 MB a step instead of 1.50 MB."
    )


def test_noise_is_said_as_noise() -> None:
    runs = [compared("ring", *NOISY), compared("hier", *HIER)]
    (words,) = sentences(compare(runs, "ring", alike=True))
    assert words.startswith("hier and ring cannot be told apart here: the difference of ")
    assert "within the noise" in words
    assert words.endswith("more rounds may tell.")


def test_a_job_that_is_not_the_base_may_be_as_fast_as_the_winner() -> None:
    slow = tuple((2 * a, 2 * b) for a, b in RING)
    nearly = tuple((a + d, b + d) for (a, b), d in zip(HIER, (2, -1, 1), strict=True))
    runs = [
        compared("ring", *slow),
        compared("hier", *HIER),
        compared("hier", *nearly, label="hier-2"),
    ]
    first, second = sentences(compare(runs, "ring", alike=True))
    assert first.startswith("hier is 2.47 times as fast as ring here")
    assert second.startswith("hier and hier-2 cannot be told apart here")


def test_one_round_is_no_proof() -> None:
    runs = [compared("ring", (351, 343)), compared("hier", (285, 275))]
    found = compare(runs, "ring", alike=True)
    assert sentences(found) == ["Whether hier is faster than ring one round cannot tell: ROUNDS=3."]
    assert "1.24 +- ?" in screen(found, 100)


def test_runs_that_did_not_take_turns_are_told_apart() -> None:
    runs = [
        compared("ring", [351] * 10, [352] * 10, group=None),
        compared("hier", [285] * 10, [286] * 10, group=None),
    ]
    words = flat(screen(compare(runs, "ring", alike=True), 100))
    assert "they did not take turns" in words
    assert "(bootstrap over 10 steps at a time)" in words


def test_what_is_not_the_same_training_is_loud() -> None:
    runs = [compared("ring", *RING), compared("hier", *HIER, baseline_ms=50)]
    found = compare(runs, "ring", alike=False)
    text = screen(found, 100, ["train.seed: 0 in ring, 1 in hier"])
    assert "NOT the same training: train.seed: 0 in ring, 1 in hier" in text
    assert rows_of(text, ("no network, ring", "no network, hier"))[1].split()[3] == "50.0"
    assert "Loss after" not in text


def test_faults_are_in_the_checks() -> None:
    runs = [compared("ring", *RING), compared("hier", *HIER, losses=[9.0] * 6)]
    words = flat(screen(compare(runs, "ring", alike=True), 100))
    assert "checks losses differ by up to" in words


def test_a_job_that_reduces_nothing_does_not_win() -> None:
    runs = [compared("ring", *RING), compared("hier", *HIER), compared("noop", [200] * 2)]
    found = compare(runs, "ring", alike=True)
    assert rows_of(screen(found, 100), ("noop",))
    assert "(noop: each rank its own, as it is meant to)" in flat(screen(found, 100))
    assert sentences(found)[0].startswith("hier is 1.23 times as fast as ring here")


def test_slowdowns_are_told_with_their_noise() -> None:
    found = three()
    gated = GateResult(0.05, gates(found, 0.05))
    words = flat(text_of(closing_screen(found, gated, (), 100), 100))
    assert "slowdown hier: not slower than native: within the limit, 5.0 %" in words
    base = compare([row.it for row in found.rows], "hier", alike=True)
    slower = GateResult(0.05, gates(base, 0.05))
    words = flat(text_of(closing_screen(base, slower, (), 80), 80))
    assert "ring: 23.5 % (" in words
    assert "slower than hier: MORE than the limit, 5.0 %" in words


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (Estimate(1.25, 1.22, 1.28), "1.25 +- 0.03"),
        (Estimate(1.25, 1.249, 1.252), "1.25 +- 0.01"),
        (Estimate(1.25, None, None), "1.25 +- ?"),
        (Estimate(0.5, 0.3, 0.9), "0.50 +- 0.40"),
    ],
)
def test_noise_is_never_rounded_away(ratio: Estimate, text: str) -> None:
    assert times(ratio) == text


@pytest.mark.parametrize("width", WIDTHS)
def test_what_to_type_next(width: int) -> None:
    bundle = "20261130-1109-compare-2x2-200mbit"
    text = text_of(next_lines(three(), bundle, (), ["default"], width), width)
    assert 'make compare JOBS="hier ring-interleaved"' in text
    assert f"make compare RUNS={bundle} BASE=hier" in text
    assert f"files   runs/{bundle}: compare.csv, compare.json" in text


def next_of(
    *runs: ComparedRun, base: str, differences: Sequence[str] = (), lab: str = "default"
) -> list[str]:
    """The commands under `next`, without what is said of them."""
    comparison = compare(runs, base, alike=not differences)
    lines = text_of(next_lines(comparison, "b", differences, [lab], 120), 120).splitlines()
    return [line[10:].split("    ")[0] for line in lines if "make" in line]


HIER_RING = 'make compare JOBS="hier ring-interleaved"'


def test_another_base_is_one_of_what_was_compared() -> None:
    hier, native = compared("hier", *HIER), compared("native", *NATIVE)
    assert next_of(hier, native, base="hier")[-1] == "make compare RUNS=b BASE=native"
    assert next_of(hier, native, base="native")[-1] == "make compare RUNS=b BASE=hier"
    noop = compared("noop", [200] * 2)
    assert next_of(hier, noop, base="hier")[-1] == "make compare RUNS=b BASE=noop"
    told = next_of(hier, native, base="hier", differences=["train.seed: 0 in hier, 1 in native"])
    assert told[-1] == "make compare RUNS=b BASE=native ALLOW_DIFFERENT=1"


def test_the_badly_placed_ring_is_not_held_against_itself() -> None:
    ring = compared("ring", *RING, sets=["name=ring-interleaved"], label="ring-interleaved")
    slow = tuple((2 * a, 2 * b) for a, b in RING)
    for other in (compared("hier", *HIER), compared("native", *slow)):
        assert len(next_of(ring, other, base="ring-interleaved")) == 1


def test_jobs_are_suggested_by_the_names_that_jobs_takes() -> None:
    slower = tuple((a + 50, b + 50) for a, b in HIER)
    mine = compared("hier", *HIER, sets=["name=mine"], label="mine")
    twice = [compared("hier", *slower, label="hier-2"), compared("native", *NATIVE)]
    assert next_of(mine, *twice, base="mine")[0] == HIER_RING
    small = [compared("hier", *HIER, sets=[f"name={name}"], label=name) for name in ("a", "b")]
    assert next_of(*small, base="a") == ["make compare RUNS=b BASE=b"]


def test_a_job_of_another_model_is_not_held_against_the_ring() -> None:
    runs = [compared("hier", *HIER, sets=["name=mini-mlp"], label=name) for name in ("a", "b")]
    assert next_of(*runs, base="a") == ["make compare RUNS=b BASE=b"]


def test_nothing_is_suggested_on_a_lab_that_is_gone() -> None:
    lab = {**run_of("hier", "hier")["lab"], "name": "scale-2x2-77"}
    runs = [compared(job, *HIER, run={"lab": lab}) for job in ("hier", "native")]
    assert next_of(*runs, base="hier") == ["make compare RUNS=b BASE=native"]
    assert next_of(*runs, base="hier", lab="scale-2x2-77")[0] == f"{HIER_RING} LAB=scale-2x2-77"


def test_what_is_kept_of_a_comparison_that_failed() -> None:
    text = text_of(kept_lines(["one-run", "another-run"], 80), 80)
    assert text == "  kept    runs/one-run, runs/another-run"


def test_what_is_not_given_has_its_reason() -> None:
    runs = [compared("ring", *RING, baseline_ms=50), compared("hier", *HIER, baseline_ms=100)]
    words = flat(screen(compare(runs, "ring", alike=True), 100))
    assert "without a pause; -: links not measured, or steps without network that vary" in words
    assert "; -:" not in flat(screen(three(), 100))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_wait_that_may_be_for_a_slower_rank_is_marked(width: int) -> None:
    runs = [
        compared("hier", *HIER, baseline_ms=198, prediction=prediction_of()),
        compared("torch-ddp", *NATIVE, baseline_ms=198),
    ]
    found = compare(runs, "torch-ddp", alike=True)
    text = screen(found, width)
    hier, stock = rows_of(text, ("hier", "torch-ddp"))
    assert "< 15" in stock and "1.54 *" in stock
    assert "<" not in hier
    words = flat(text)
    assert "< waiting for slower ranks is in it, which torch's own class does not tell" in words
    untold = "without a pause; -: torch's own class does not tell how it reduces"
    assert (untold in words) == (width >= 100)
    assert "links not measured" not in words
    assert sentences(found)[-1] == (
        "At 1 Gbit/s hier would take 199 ms (predicted): the link would no longer hold it up."
    )
    assert "<" not in flat(screen(three(), width)) and "torch" not in flat(screen(three(), width))
