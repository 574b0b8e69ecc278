"""/metrics of a run whose wrapper does not tell its buckets: absent, not 0."""

from pathlib import Path

import pytest

from jobs.server.store import Store
from tests.jobs.run_folders import going_on
from tests.jobs.samples import stock_run
from tests.jobs.server.test_metrics import names, scrape, value


def test_what_torchs_own_class_does_not_tell_is_absent(tmp_path: Path) -> None:
    """From the first look at a run on; the same run of ours has them all."""
    store, stock = Store(tmp_path / "runs"), stock_run()["job"]
    with going_on(tmp_path / "runs", "run", job=stock) as ranks:
        ranks.headers()
        before = names(scrape(store), "run")
        untold = {"buckets": None, "intra_node_bytes": None, "inter_node_bytes": None}
        ranks.step(0, **untold)
        found = scrape(store)
        after = names(found, "run")
    derived = {f"{name}_seconds_total" for name in ("comm_busy", "comm_hidden", "straggler_wait")}
    whole = {"overlap_ratio", "bus_bandwidth_bytes_per_second", "predicted_step_seconds"}
    assert not (before | after) & {*derived, *whole, "comm_bytes_total"}
    rank2 = {"node": "node1", "rank": "2"}
    assert value(found, "comm_exposed_seconds_total", **rank2) == pytest.approx(0.0886)
    assert value(found, "nic_bytes_total", node="node1", direction="out") == 3_630_000
    assert value(found, "steps_total") == 1
    with going_on(tmp_path / "runs", "ours") as ranks:
        ranks.headers()
        ranks.step(0)
        assert derived < names(scrape(store), "ours")
