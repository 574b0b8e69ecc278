"""The verb status: all labs of a person, or one of them in detail."""

import time
from typing import TYPE_CHECKING, Any

import click

from jobs.cli_lab import SCHEMA, json_option, show_answer

if TYPE_CHECKING:
    from cluster.lab import Lab
    from cluster.state import Activity
    from cluster.survey import Sighting


@click.command()
@click.option("--lab", "lab_name", help="One lab in detail; without it: all of yours.")
@json_option
def status(lab_name: str | None, as_json: bool) -> None:
    """Show your labs: their links, what they carry, and what runs on them."""
    from cluster.survey import survey
    from jobs.report.labs_screen import labs_screen
    from jobs.report.watch_lines import watch_lines
    from jobs.server.process import address_of

    now_s = time.time()
    labs = survey() if lab_name is None else (_one(lab_name),)
    answer = {"schema": SCHEMA, "labs": [_entry(each, now_s) for each in labs]}
    (only,) = labs if len(labs) == 1 else (None,)
    if lab_name is not None and only is not None and only.lab is not None:
        from jobs.report.lab_screens import status_screen
        from jobs.report.labs_screen import doing

        lab, words = only.lab, doing(only, now_s)
        show_answer(
            lambda width: status_screen(lab, width, words) + watch_lines([address_of(lab.name)]),
            answer,
            as_json,
        )
    else:
        addresses = [address_of(each.name) for each in labs]
        show_answer(
            lambda width: labs_screen(labs, now_s, width) + watch_lines(addresses), answer, as_json
        )


def _one(name: str) -> "Sighting":
    """The lab of this name; raises NoLab, where it is dead after what it left was removed."""
    from cluster.kept import no_lab
    from cluster.lab import open_lab
    from cluster.survey import Condition, sight

    found = sight(name)
    if found is None:
        open_lab(name)  # tells what there is instead
        found = sight(name)
    if found is None or found.condition is Condition.REMOVED:
        seen = found.note if found else None
        raise no_lab(name, seen)
    return found


def _entry(sighting: "Sighting", now_s: float) -> dict[str, Any]:
    lab = sighting.lab
    return {
        "lab": sighting.name,
        "state": sighting.condition.value,
        "note": sighting.note,
        "use": _activity(sighting.usage, now_s),
        "worker": _activity(sighting.worker, now_s),
        **(_figures(lab, now_s) if lab else {}),
    }


def _figures(lab: "Lab", now_s: float) -> dict[str, Any]:
    from jobs.server.process import address_of

    links = lab.spec.links_of
    return {
        "backend": lab.backend,
        "cluster": lab.spec.to_dict(),
        "ranks": lab.spec.nodes * lab.spec.ranks_per_node,
        "nodes": [
            {
                "name": node.name,
                "address": node.address,
                "rate_bits_per_second": links(node.name).inter_node.rate_bits_per_s,
            }
            for node in lab.nodes.list()
        ],
        "created_at": lab.created_at,
        "age_s": round(now_s - lab.created_at, 3),
        "proof": lab.proof,
        "probe": lab.probe.to_json() if lab.probe else None,
        "exporter": address_of(lab.name),
    }


def _activity(activity: "Activity | None", now_s: float) -> dict[str, Any] | None:
    from jobs.report.labs_screen import process_of

    if activity is None:
        return None
    return {
        "what": activity.what,
        "process": process_of(activity),
        "age_s": round(now_s - activity.since, 3),
    }
