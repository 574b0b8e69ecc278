"""What is shown of the Ray cluster inside a lab as it comes up and goes."""

from cluster.rayhosts.lab_ray import RayCluster
from cluster.state import DEFAULT_LAB
from jobs.report.lab_words import clock
from jobs.report.text import Lines, count, labelled, paragraph, seconds


def ray_up_screen(cluster: RayCluster, took_s: float, width: int) -> Lines:
    """What runs where, and what to type next."""
    name = cluster.lab.name
    option = "" if name == DEFAULT_LAB else f" LAB={name}"
    nodes = cluster.lab.nodes.list()
    if cluster.already_up:
        how = f"is up already, since {clock(cluster.created_at)}"
    else:
        how = f"is up after {seconds(took_s)}"
    text = f'A Ray cluster inside lab "{name}" {how}: {count(len(nodes), "node")}, Ray '
    lines = paragraph(f"{text}{cluster.ray}, its head at {cluster.address} inside the lab.", width)
    lines += labelled("next", f"make run JOB=hier BACKEND=ray{option}", width, label_width=8)
    return lines + labelled(
        "stop", f"make ray-down{option}     it also ends with the lab", width, label_width=8
    )


def ray_down_screen(cluster: RayCluster, user: str | None, width: int) -> Lines:
    """`user`: what ran on the lab as Ray was ended."""
    text = f'The Ray cluster inside lab "{cluster.lab.name}" is down; the lab stays.'
    return paragraph(f"{text} The lab was in use: {user}." if user else text, width)
