"""The verbs about the Ray cluster inside a lab: ray-up, ray-down."""

import time
from typing import TYPE_CHECKING, Any

import click

from jobs.cli_lab import SCHEMA, json_option, lab_option, show_answer

if TYPE_CHECKING:
    from cluster.rayhosts.lab_ray import RayCluster


@click.command("ray-up")
@lab_option
@json_option
def ray_up(lab_name: str, as_json: bool) -> None:
    """Start a Ray cluster inside the lab's nodes."""
    from cluster import lab
    from cluster.rayhosts import lab_ray
    from jobs.report.ray_screens import ray_up_screen

    started_s = time.monotonic()
    cluster = lab_ray.ray_up(lab.open_lab(lab_name))
    took_s = time.monotonic() - started_s
    answer = {**_cluster_json(cluster), "already_up": cluster.already_up}
    show_answer(lambda width: ray_up_screen(cluster, took_s, width), answer, as_json)


@click.command("ray-down")
@lab_option
@json_option
def ray_down(lab_name: str, as_json: bool) -> None:
    """End the Ray cluster inside the lab; the lab stays."""
    from cluster import lab
    from cluster.rayhosts import lab_ray
    from jobs.report.ray_screens import ray_down_screen

    found = lab.open_lab(lab_name)
    user = lab.user_of(lab_name)
    cluster = lab_ray.ray_down(found)
    answer = {**_cluster_json(cluster), "down": True}
    show_answer(lambda width: ray_down_screen(cluster, user, width), answer, as_json)


def _cluster_json(cluster: "RayCluster") -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "lab": cluster.lab.name,
        "address": cluster.address,
        "ray": cluster.ray,
        "nodes": [
            {"name": node.name, "address": node.address} for node in cluster.lab.nodes.list()
        ],
        "created_at": cluster.created_at,
    }
