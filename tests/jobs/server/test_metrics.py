"""/metrics against hand-made runs: every value, what is absent, and what never falls."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from jobs.server.collector import RunsCollector
from jobs.server.store import Store
from jobs.server.table import COMMON, METRICS, PREFIX, markdown
from jobs.server.totals import STEP_BOUNDS_S, Histogram
from tests.jobs.run_folders import MONOTONIC_NS, WALL_NS, Ranks, conclude, ended, going_on

ROOT = Path(__file__).parents[3]
LABELS = {*COMMON, "node", "rank", "phase", "scope", "direction", "kind"}
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(store: Store) -> Series:
    """(name, labels besides the common three) -> value."""
    registry = CollectorRegistry()
    registry.register(RunsCollector(store))
    series: Series = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("job", "algorithm")}
            key = sample.name.removeprefix(PREFIX), frozenset(labels.items())
            assert key not in series
            assert sample.labels.keys() <= {*LABELS, "le"}
            series[key] = sample.value
    return series


def value(series: Series, name: str, run_id: str = "run", **labels: str) -> float | None:
    return series.get((name, frozenset({"run_id": run_id, **labels}.items())))


def names(series: Series, run_id: str) -> set[str]:
    return {name for name, labels in series if ("run_id", run_id) in labels}


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Ranks]:
    with going_on(tmp_path / "runs", "run") as ranks:
        yield ranks


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


def test_every_value_of_a_running_run(live: Ranks, store: Store) -> None:
    live.headers()
    live.baseline()
    for number in range(4):
        live.step(number)
    live.folder.write("prediction.json", {"step_seconds": 0.279})
    found = scrape(store)
    rank2 = {"node": "node1", "rank": "2"}

    assert value(found, "run_info") == value(found, "run_up") == 1
    assert value(found, "steps_total") == 4
    assert value(found, "samples_total") == 4 * 4 * 8
    assert value(found, "step_duration_seconds_count") == 4
    assert value(found, "step_duration_seconds_sum") == pytest.approx(4 * 0.286)
    assert value(found, "step_duration_seconds_bucket", le="0.2") == 0
    assert value(found, "step_duration_seconds_bucket", le="0.3") == 4
    phases = {"data": 1, "forward": 61, "backward": 122, "comm_exposed": 88.6, "optimizer": 8.4}
    for phase, milliseconds in {**phases, "other": 5}.items():
        one = milliseconds / 1e3
        last = value(found, "last_step_phase_seconds", **rank2, phase=phase)
        assert last == pytest.approx(one)
        total = value(found, "phase_seconds_total", **rank2, phase=phase)
        assert total == pytest.approx(4 * one)
    # buckets 101..184 and, when rank 3 is ready too, 189..272.6; waiting from 184 to 272.6
    assert value(found, "comm_busy_seconds_total", **rank2) == pytest.approx(4 * 0.1666)
    assert value(found, "comm_exposed_seconds_total", **rank2) == pytest.approx(4 * 0.0886)
    assert value(found, "comm_hidden_seconds_total", **rank2) == pytest.approx(4 * 0.083)
    assert value(found, "straggler_wait_seconds_total", **rank2) == pytest.approx(4 * 0.005)
    assert value(found, "comm_bytes_total", **rank2, scope="intra_node") == 4 * 3_470_000
    assert value(found, "comm_bytes_total", **rank2, scope="inter_node") == 4 * 1_735_000
    for direction in ("out", "in"):
        nic = value(found, "nic_bytes_total", node="node1", direction=direction)
        assert nic == 4 * 3_630_000
    assert value(found, "last_step", **rank2) == 4
    ended_at = WALL_NS / 1e9 + 0.286
    assert value(found, "last_step_timestamp_seconds", **rank2) == pytest.approx(ended_at)
    assert value(found, "baseline_step_seconds") == 0.198
    assert value(found, "communication_efficiency_ratio") == pytest.approx(0.198 / 0.286)
    assert value(found, "predicted_step_seconds") == 0.279
    assert value(found, "scaling_efficiency_ratio") is None


def test_links_as_they_were_set_and_measured(live: Ranks, store: Store) -> None:
    def rates(node: str, direction: str) -> list[float | None]:
        found = scrape(store)
        kinds = ("configured", "measured", "ceiling")
        labels = {"node": node, "direction": direction}
        return [value(found, "link_rate_bytes_per_second", **labels, kind=kind) for kind in kinds]

    run = live.folder.read("run.json") or {}
    links = {(it["src"], it["mode"]): it for it in run["probe"]["links"]}
    ceiling = links["node0", "one_way"]["ceiling_bytes_per_second"]
    assert rates("node0", "out") == [25e6, 23.8e6, ceiling]  # only one way was measured
    assert rates("node0", "in") == [25e6, 20.0e6, ceiling]  # both ways at once goes before
    change = {"t_ns": 1, "node": "node0", "settled_ns": 2, "configured_bits_per_second": 8_000_000}
    changes = [{**change, "direction": "out"}, {**change, "direction": "inside"}]
    live.folder.write("run.json", {**run, "link_changes": changes})
    assert rates("node0", "out") == [1e6, None, None]
    assert rates("node0", "in") == [25e6, 20.0e6, ceiling]
    changes.append({**change, "direction": "out", "settled_ns": None})
    live.folder.write("run.json", {**run, "link_changes": changes, "probe": None})
    assert rates("node0", "out") == [None, None, None]
    assert rates("node1", "in") == [25e6, None, None]


def test_undefined_is_absent(live: Ranks, store: Store) -> None:
    start = names(scrape(store), "run")
    assert start == {
        *("run_info", "run_up", "steps_total", "samples_total", "phase_seconds_total"),
        *("step_duration_seconds_bucket", "step_duration_seconds_count"),
        *("step_duration_seconds_sum", "comm_busy_seconds_total", "comm_exposed_seconds_total"),
        *("comm_hidden_seconds_total", "straggler_wait_seconds_total"),
        "link_rate_bytes_per_second",
    }
    live.headers()
    live.step(0)
    no_baseline = names(scrape(store), "run") - start
    assert no_baseline == {
        *("last_step", "last_step_timestamp_seconds", "last_step_phase_seconds"),
        *("overlap_ratio", "bus_bandwidth_bytes_per_second", "comm_bytes_total"),
        "nic_bytes_total",
    }
    live.baseline(step_s=0.0)
    assert value(scrape(store), "communication_efficiency_ratio") is None


def test_steps_that_take_no_time_make_no_ratio(live: Ranks, store: Store) -> None:
    live.headers()
    live.baseline()
    nothing = dict.fromkeys(("step_s", "data_s", "forward_s", "backward_s", "optimizer_s"), 0.0)
    live.step(0, **nothing, comm_exposed_s=0.0, other_s=0.0, buckets=[], exposed=[])
    found = scrape(store)
    assert value(found, "steps_total") == 1
    assert not names(found, "run") & {
        "communication_efficiency_ratio",
        "overlap_ratio",
        "bus_bandwidth_bytes_per_second",
    }


def test_bytes_that_nobody_counts_are_absent(live: Ranks, store: Store) -> None:
    live.headers()
    live.step(0, intra_node_bytes=None, inter_node_bytes=None)
    assert "comm_bytes_total" not in names(scrape(store), "run")
    assert value(scrape(store), "nic_bytes_total", node="node0", direction="out") == 3_630_000


@pytest.mark.parametrize("odd", ["NaN", "Infinity", '"0.9"', "true", "1" + "0" * 400])
def test_a_summary_of_somebody_elses_exposes_only_numbers(
    tmp_path: Path, store: Store, odd: str
) -> None:
    folder = ended(tmp_path / "runs", "run")
    conclude(folder, scaling_efficiency_ratio="ODD")
    text = (folder.path / "summary.json").read_text().replace('"ODD"', odd)
    (folder.path / "summary.json").write_text(text)
    assert value(scrape(store), "scaling_efficiency_ratio") is None
    assert value(scrape(store), "communication_efficiency_ratio") == pytest.approx(0.198 / 0.286)


def test_a_finished_run_keeps_its_result_and_takes_what_is_added(
    tmp_path: Path, store: Store
) -> None:
    folder = ended(tmp_path / "runs", "run", created_at="2026-11-30T10:00:00")
    assert value(scrape(store), "steps_total") == 3
    ended(tmp_path / "runs", "later", created_at="2026-11-30T11:00:00")
    assert names(scrape(store), "run") == {
        *("run_info", "run_up", "bus_bandwidth_bytes_per_second", "overlap_ratio"),
        *("baseline_step_seconds", "communication_efficiency_ratio", "predicted_step_seconds"),
    }
    conclude(folder, scaling_efficiency_ratio=0.75)
    found = scrape(store)
    assert value(found, "scaling_efficiency_ratio") == 0.75
    assert value(found, "run_up") == 0


def test_counters_of_a_run_never_fall_also_when_its_ranks_die(tmp_path: Path, store: Store) -> None:
    before: Series = {}
    with going_on(tmp_path / "runs", "run") as ranks:
        ranks.headers()
        for number in range(6):
            ranks.step(number)
            found = scrape(store)
            fallen = [key for key in before if counts(key[0]) and found[key] < before[key]]
            assert fallen == []
            before = found
    after = scrape(store)
    kept = [key for key in before if counts(key[0]) and key in after]
    assert {name for name, _ in kept} == {
        *("steps_total", "samples_total", "step_duration_seconds_count"),
        *("step_duration_seconds_sum", "step_duration_seconds_bucket"),
    }
    assert [key for key in kept if after[key] != before[key]] == []
    assert {dict(labels).get("rank") for _, labels in after} == {None}


def counts(name: str) -> bool:
    return name.endswith(("_total", "_count", "_sum", "_bucket"))


def test_more_steps_make_no_more_series(live: Ranks, store: Store) -> None:
    live.headers()
    live.step(0)
    before = scrape(store).keys()
    for number in range(1, 200):
        live.step(number)
    assert scrape(store).keys() == before


@pytest.mark.parametrize(("step_s", "bound"), [(0.002, 0.002), (0.3, 0.3), (40.0, 50.0)])
def test_steps_of_2_ms_to_40_s_have_a_bucket_of_their_own(step_s: float, bound: float) -> None:
    histogram = Histogram()
    histogram.add(step_s)
    assert dict(histogram.cumulative())[repr(bound)] == 1
    below = STEP_BOUNDS_S[STEP_BOUNDS_S.index(bound) - 1]
    assert dict(histogram.cumulative())[repr(below)] == 0


@given(st.lists(st.floats(min_value=0, max_value=1e4), max_size=50))
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
def test_a_histogram_counts_every_value_once(values: list[float]) -> None:
    histogram = Histogram()
    for each in values:
        histogram.add(each)
    for bound, num_values in histogram.cumulative():
        assert num_values == sum(each <= float(bound) for each in values)
    assert histogram.cumulative()[-1] == ("+Inf", len(values))


def test_names_that_a_label_must_escape(tmp_path: Path, store: Store) -> None:
    job = {"name": 'a"b\\c\nd{}', "ddp": {"algorithm": "grüße"}}
    with going_on(tmp_path / "runs", "run") as ranks:
        run = ranks.folder.read("run.json") or {}
        ranks.folder.write("run.json", {**run, "job": {**run["job"], **job}})
        registry = CollectorRegistry()
        registry.register(RunsCollector(store))
        (info,) = [
            sample
            for family in text_string_to_metric_families(generate_latest(registry).decode())
            for sample in family.samples
            if sample.name == f"{PREFIX}run_info"
        ]
    assert (info.labels["job"], info.labels["algorithm"]) == (job["name"], "grüße")


def test_the_same_runs_can_be_collected_twice_at_once(live: Ranks, store: Store) -> None:
    live.headers()
    live.step(0)
    assert scrape(store) == scrape(store) == scrape(Store(store.runs))


def test_the_table_keeps_to_the_names_and_labels_that_were_promised() -> None:
    design = {
        *("run_info", "run_up", "steps_total", "samples_total", "step_duration_seconds"),
        *("last_step_phase_seconds", "phase_seconds_total", "comm_busy_seconds_total"),
        *("comm_exposed_seconds_total", "straggler_wait_seconds_total", "comm_bytes_total"),
        *("nic_bytes_total", "link_rate_bytes_per_second", "bus_bandwidth_bytes_per_second"),
        *("overlap_ratio", "baseline_step_seconds", "communication_efficiency_ratio"),
        *("scaling_efficiency_ratio", "predicted_step_seconds", "last_step"),
        "last_step_timestamp_seconds",
    }
    assert {metric.name for metric in METRICS} == design | {"comm_hidden_seconds_total"}
    assert {label for metric in METRICS for label in metric.labels} | set(COMMON) == LABELS


def test_docs_have_the_table_as_it_is_here() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    rows = "".join(re.findall(r"^\| .*\n|^\|---.*\n", text, re.MULTILINE))
    assert rows == markdown(), f"put this into docs/metrics.md:\n\n{markdown()}"
    known = {f"{PREFIX}{metric.name}" for metric in METRICS}
    for name in re.findall(rf"{PREFIX}\w+", text):
        assert re.sub(r"_(bucket|count|sum)$", "", name) in known | {name} & known


def test_times_of_a_rank_without_a_header_are_no_wall_clock(live: Ranks, store: Store) -> None:
    live.step(0, t_ns=MONOTONIC_NS)
    found = scrape(store)
    assert value(found, "last_step", node="node0", rank="0") == 1
    assert "last_step_timestamp_seconds" not in names(found, "run")
