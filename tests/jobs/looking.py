"""What a store of runs shows now, for tests of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.server.store import Snapshot, Store
from jobs.server.watched import RunView
from tests.jobs.run_folders import Ranks, going_on

LATER = "2026-11-30T12:00:00"


def look(store: Store) -> Snapshot:
    return store.look(lambda snapshot: snapshot)


def states(snapshot: Snapshot) -> dict[str, str]:
    return {run.run_id: run.state for run in snapshot.runs}


def view(store: Store, run_id: str) -> RunView:
    (found,) = [run for run in look(store).runs if run.run_id == run_id]
    return found


def steps_of(run: RunView) -> int | None:
    return run.totals.steps if run.totals else None


@contextmanager
def at_step(runs: Path, number: int, name: str = "live") -> Iterator[Ranks]:
    """A run that has done so many steps."""
    with going_on(runs, name, created_at=LATER) as ranks:
        ranks.headers()
        for step in range(number):
            ranks.step(step)
        yield ranks
