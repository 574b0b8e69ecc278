"""Runs side by side: rows, bounds, losses, bits, and what another link would give."""

import pytest

from jobs.compare.comparison import LOSS_TOLERANCE, NO_NETWORK, Comparison, compare
from jobs.compare.stats import Estimate
from tests.jobs.compare_samples import MBIT_200, compared, prediction_of

RING = ((100, 104), (102, 102), (100, 104))
HIER = ((80, 84), (82, 82), (80, 84))


def ring_and_hier(**changes: object) -> Comparison:
    runs = [
        compared("ring", *RING, prediction=prediction_of()),
        compared("hier", *HIER, prediction=prediction_of()),
    ]
    return compare(runs, "ring", alike=True, **changes)  # type: ignore[arg-type]


def test_rows_begin_with_the_fastest_and_the_base_is_once_as_fast_as_itself() -> None:
    found = ring_and_hier()
    assert [row.it.label for row in found.rows] == ["hier", "ring"]
    assert found.row("ring").speed_up == Estimate(1.0, None, None)
    assert found.row("hier").speed_up.value == pytest.approx(102 / 82)
    assert found.row("hier").speed_up.sure
    assert found.against("ring", "hier").value == pytest.approx(82 / 102)
    assert found.together


def test_the_least_step_of_each_bounds_what_it_can_win() -> None:
    """Without network 70 ms, then what the busiest link needs beyond backward."""
    found = ring_and_hier()
    burst, rate = 131_072, 25e6
    for label, sent in (("ring", 3_000_000), ("hier", 2_000_000)):
        least_s = 0.07 + 0.01 + (sent - burst) / rate - 0.04
        assert found.row(label).at_most == pytest.approx(0.102 / least_s)


def test_steps_without_network_are_those_of_all_runs() -> None:
    runs = [compared("ring", *RING, baseline_ms=60), compared("hier", *HIER, baseline_ms=80)]
    steps = compare(runs, "ring", alike=True).no_network
    assert list(steps) == [NO_NETWORK]
    assert (steps[NO_NETWORK].mean, steps[NO_NETWORK].n) == (pytest.approx(0.07), 40)
    apart = compare(runs, "ring", alike=False).no_network
    assert {name: each.mean for name, each in apart.items()} == {
        "no network, ring": pytest.approx(0.06),
        "no network, hier": pytest.approx(0.08),
    }


def test_runs_that_did_not_take_turns_are_cut_into_blocks_of_ten_steps() -> None:
    runs = [
        compared("ring", [100] * 10, [102] * 10, [104] * 5, group=None),
        compared("hier", [80] * 10, [82] * 10, [84] * 5, group=None),
    ]
    assert [[len(block) for block in run.rounds] for run in runs] == [[10, 15], [10, 15]]
    found = compare(runs, "ring", alike=True)
    assert not found.together
    assert found.row("hier").speed_up.low is not None


def test_turns_of_different_groups_were_not_side_by_side() -> None:
    runs = [compared("ring", *RING, group="one"), compared("hier", *HIER, group="two")]
    assert not compare(runs, "ring", alike=True).together


def test_a_nic_is_asked_where_the_payload_is_not_known() -> None:
    runs = [compared("ring", *RING), compared("native", *RING)]
    found = compare(runs, "native", alike=True)
    assert found.row("ring").sent_bytes == (1_500_000, False)
    assert found.row("native").sent_bytes == (1_530_000, True)


def test_losses_are_held_together_at_every_step_they_share() -> None:
    ring = compared("ring", [100] * 2, [100] * 2, losses=[4.0, 3.9, 3.8, 3.7])
    hier = compared("hier", [80] * 2, [80] * 2, losses=[4.0, 3.9 * 1.0001, 3.8, 3.7])
    losses = compare([ring, hier], "ring", alike=True).losses
    assert losses.step == 4
    assert losses.last == {"ring": pytest.approx(3.7), "hier": pytest.approx(3.7)}
    assert losses.apart == pytest.approx(0.0001, rel=1e-3)


def test_a_loss_that_goes_its_own_way_is_a_fault() -> None:
    ring = compared("ring", [100] * 2, [100] * 2, losses=[4.0, 3.9, 3.8, 3.7])
    off = 3.8 * (1 + 2 * LOSS_TOLERANCE)
    hier = compared("hier", [80] * 2, [80] * 2, losses=[4.0, 3.9, off, 3.7])
    (fault,) = compare([ring, hier], "ring", alike=True).faults
    assert "losses differ by up to 0.20%" in fault
    assert "after step 4 ring 3.7000, hier 3.7000" in fault
    assert compare([ring, hier], "ring", alike=False).faults == []


@pytest.mark.parametrize("losses", [[0.0, 0.0], [-1.0, -2.0], [0.0, -1.0]])
def test_losses_of_ones_own_may_be_of_any_sign(losses: list[float]) -> None:
    runs = [compared(job, [100] * 2, losses=losses) for job in ("ring", "hier")]
    found = compare(runs, "ring", alike=True)
    assert (found.losses.apart, found.faults) == (0.0, [])
    other = compared("native", [100] * 2, losses=[loss - 0.1 for loss in losses])
    assert len(compare([*runs, other], "ring", alike=True).faults) == 1


def test_a_job_that_reduces_nothing_is_in_no_check() -> None:
    ring = compared("ring", *RING)
    noop = compared("noop", *HIER, losses=[9.0] * 6)
    found = compare([ring, noop], "ring", alike=True)
    assert found.faults == []
    assert [row.it.label for row in found.contenders] == ["ring"]


def test_the_same_plan_must_give_the_same_bits() -> None:
    same = [compared("ring", *RING), compared("ring", *RING, label="ring-2")]
    assert compare(same, "ring", alike=True).faults == []
    other = compared("ring", *RING, label="ring-2", sha256="dd" * 32)
    (fault,) = compare([same[0], other], "ring", alike=True).faults
    assert "ring and ring-2 follow the same plan and end with different parameters" in fault
    longer = compared("ring", *RING, *RING, label="ring-2", sha256="dd" * 32)
    assert compare([same[0], longer], "ring", alike=True).faults == []
    file = {"model_file": {"path": "/a/my.py", "sha256": "beef"}}
    edited = compared("ring", *RING, label="ring-2", sha256="dd" * 32, run=file)
    assert compare([same[0], edited], "ring", alike=False).faults == []


def test_micro_steps_reduced_one_by_one_add_up_in_another_order() -> None:
    accumulated = ("train.accumulate=4",)
    once = compared("ring", (100,) * 3, sha256="aa" * 32, sets=accumulated)
    forgot = (*accumulated, "ddp.no_sync=false")
    each = compared("ring", (100,) * 3, label="each", sha256="dd" * 32, sets=forgot)
    assert compare([once, each], "ring", alike=True).faults == []
    again = compared("ring", (100,) * 3, label="again", sha256="ee" * 32, sets=forgot)
    (fault,) = compare([each, again], "each", alike=True).faults
    assert "each and again follow the same plan" in fault


def test_at_a_faster_link_each_waits_for_what_is_predicted() -> None:
    forecast = ring_and_hier().forecast
    assert forecast is not None
    assert forecast.rate_bits_per_s == 5 * MBIT_200
    assert forecast.step_s["hier"] == pytest.approx(0.07, abs=0.002)
    assert 0.07 <= forecast.step_s["hier"] <= forecast.step_s["ring"] < 0.1


def test_without_a_prediction_for_each_there_is_no_forecast() -> None:
    runs = [compared("ring", *RING, prediction=prediction_of()), compared("hier", *HIER)]
    found = compare(runs, "ring", alike=True)
    assert found.forecast is None
    assert found.row("hier").at_most is None


def test_nothing_is_built_on_steps_without_network_that_vary() -> None:
    runs = [
        compared("ring", *RING, baseline_ms=50, prediction=prediction_of()),
        compared("hier", *HIER, baseline_ms=100, prediction=prediction_of()),
    ]
    found = compare(runs, "ring", alike=True)
    assert found.no_network[NO_NETWORK].p90 == pytest.approx(0.1)
    assert [row.at_most for row in found.rows] == [None, None]
    assert found.forecast is None
    apart = compare(runs, "ring", alike=False)  # each on its own is steady
    assert all(row.at_most for row in apart.rows)


def test_a_run_without_a_plan_has_no_bound_and_no_bits_to_check() -> None:
    """torch's own class: others keep their forecast, and two of its kind may add as they like."""
    runs = [
        compared("torch-ddp", *RING),
        compared("torch-ddp", *RING, label="again", sha256="ee" * 32),
        compared("hier", *HIER, prediction=prediction_of()),
    ]
    found = compare(runs, "torch-ddp", alike=True)
    assert found.faults == []
    assert (found.row("torch-ddp").at_most, found.row("again").at_most) == (None, None)
    assert found.row("hier").at_most == pytest.approx(ring_and_hier().row("hier").at_most or 0)
    assert found.forecast is not None
    assert found.forecast.step_s == {"hier": pytest.approx(0.07, abs=0.002)}
    assert compare(runs[:2], "torch-ddp", alike=True).forecast is None
