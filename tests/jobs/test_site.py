"""Where a job runs: which of a lab and a Ray cluster is meant, and how it is told."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from cluster.lab import Lab
from cluster.nodes import NodeFacts
from cluster.site import Attached
from jobs.cli_run import require_rate
from jobs.cli_site import SiteAsked, opened_site
from jobs.errors import LaunchError
from jobs.launch import plan_ranks
from jobs.report.site_words import place_options, site_words
from jobs.runinfo import describe_run, measured_by_ranks, shared_by_ranks, told_by_ranks
from jobs.spec import JobSpec
from jobs.underlay import lost_fix
from jobs.verbs import CommandLineError
from tests.jobs.conftest import LocalNodes, cluster_spec


class Machines(LocalNodes):
    """Nodes with 8 cores each; those of one machine tell its boot id."""

    boot_ids = ("a", "b")

    def facts(self, node: Any) -> NodeFacts:
        return NodeFacts("6.1", self.boot_ids[node.index], 8, 1 << 30, "3.11", None)


@pytest.fixture
def cluster() -> Attached:
    spec = cluster_spec(2, 2, "unlimited")
    return Attached("10.0.0.1:6379", spec, "ray", Machines(2), 1_795_000_000.0, underlay=None)


def test_options_of_ray_need_ray() -> None:
    with pytest.raises(CommandLineError, match="ADDRESS, RANKS_PER_NODE without BACKEND=ray"):
        SiteAsked.of(None, {"address": "10.0.0.1:6379", "ranks_per_node": 2, "fabric": None})


def test_the_lab_is_taken_as_it_is(make_lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lab: Lab = make_lab()
    monkeypatch.setattr("cluster.lab.open_lab", lambda name: replace(lab, name=name))
    monkeypatch.setattr("jobs.cli_link.lab_to_run_on", lambda opened, _: opened)
    seen: list[Any] = []
    for backend in (None, "auto", "netns"):
        with opened_site(SiteAsked.of("a", {"backend": backend}), seen.append, False) as site:
            assert (site.name, site.underlay) == ("a", site)
    assert len(seen) == 3
    asked = SiteAsked.of(None, {"backend": "compose"})
    fault = 'BACKEND=compose, but the nodes of lab "default" are of netns'
    with pytest.raises(LaunchError, match=fault), opened_site(asked, seen.append, False):
        pass


def test_a_rate_cannot_be_asked_where_nothing_is_limited(cluster: Attached) -> None:
    require_rate(cluster, None, "run JOB=hier")
    with pytest.raises(LaunchError, match="RATE=1gbit where no lab limits the links"):
        require_rate(cluster, "1gbit", "run JOB=hier")


def test_a_cluster_of_others_is_told_with_its_nics(cluster: Attached, make_lab: Any) -> None:
    assert site_words(cluster) == (
        "Ray cluster at 10.0.0.1:6379: 2 nodes x 2 ranks (node0 127.0.0.1 lo, node1 127.0.0.1 lo). "
        "Nothing is limited here; links are measured by the ranks before they train"
    )
    lab: Lab = make_lab()
    inside = replace(cluster, underlay=lab, spec=lab.spec)
    assert site_words(inside).startswith('Ray cluster inside lab "default": 2 nodes x 2 ranks')
    assert "The lab limits the links, 200 Mbit/s, not this backend" in site_words(inside)
    many = replace(cluster, nodes=Machines(7))
    assert site_words(many).count("127.0.0.1") == 4
    assert "node3 127.0.0.1 lo, and 3 more)" in site_words(many)
    assert site_words(lab).startswith('Lab "default": 2 nodes x 2 ranks, 200 Mbit/s')


def test_ranks_measure_what_nobody_measured(cluster: Attached, make_lab: Any) -> None:
    def measures(site: Any) -> bool:
        return plan_ranks(JobSpec(name="ok"), site).measure_links

    one = replace(cluster, spec=cluster_spec(1, 2, "unlimited"), nodes=Machines(1))
    assert [measures(site) for site in (cluster, one, make_lab())] == [True, False, False]


def test_cores_are_those_of_the_machines(
    cluster: Attached, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shared_by_ranks(cluster) == 16
    monkeypatch.setattr(Machines, "boot_ids", ("a", "a"))  # both are on one machine
    assert shared_by_ranks(cluster) == 8


def test_a_measurement_by_ranks_is_told_with_what_limits_the_links() -> None:
    def link(src: str, dst: str, mode: str) -> dict[str, Any]:
        return {"src": src, "dst": dst, "mode": mode, "configured_bits_per_second": None}

    slow = {"node1": {"inter_node": {"rate": "50mbit"}}}
    spec = cluster_spec(3, 1).model_validate({**cluster_spec(3, 1).to_dict(), "overrides": slow})
    links = [
        link("node0", "node2", "one_way"),
        link("node1", "node0", "both_ways"),
        link("node0", "node0", "intra_node"),
    ]
    measured = measured_by_ranks({"probe": {"ok": True, "links": links}}, spec)
    assert measured is not None
    limits = [each["configured_bits_per_second"] for each in measured["links"]]
    assert limits == [200_000_000, 50_000_000, None]
    assert measured_by_ranks({"probe": None}, spec) is None


def test_a_run_says_of_what_its_nodes_are(cluster: Attached) -> None:

    plan = plan_ranks(JobSpec(name="ok"), cluster)
    run = describe_run("x", cluster, plan, datetime.now().astimezone())
    lab = run["lab"]
    assert (lab["name"], lab["backend"], lab["underlay"]) == ("10.0.0.1:6379", "ray", None)
    assert [node["rate_bits_per_s"] for node in lab["nodes"]] == [None, None]
    assert (run["cores"], run["threads"]["per_rank"]) == (16, 4)


@pytest.mark.parametrize(
    ("backend", "name", "underlay", "options"),
    [
        ("netns", "default", "netns", ""),
        ("compose", "a", "compose", " LAB=a"),
        ("ray", "default", "netns", " BACKEND=ray"),
        ("ray", "a", "compose", " BACKEND=ray LAB=a"),
        ("ray", "10.0.0.1:6379", None, " BACKEND=ray ADDRESS=10.0.0.1:6379 RANKS_PER_NODE=2"),
    ],
)
def test_a_command_that_follows_runs_in_the_same_place(
    backend: str, name: str, underlay: str | None, options: str
) -> None:
    lab = {"name": name, "backend": backend, "underlay": underlay}
    assert place_options({"lab": lab, "nproc_per_node": 2}) == options


def test_what_is_done_about_a_lost_node(cluster: Attached, make_lab: Any) -> None:
    lab: Lab = make_lab()
    assert lost_fix(lab) == "make cluster-status"
    assert lost_fix(cluster) == "look at what Ray says of its nodes: ray status"
    assert lost_fix(replace(cluster, underlay=lab)) == "make ray-up"
    assert lost_fix(replace(cluster, underlay=replace(lab, name="a"))) == "make ray-up LAB=a"


def test_what_ranks_know_when_they_are_ready_is_kept() -> None:
    card = {"name": "H200", "uuid": "GPU-1"}
    gpu = {"device": "cuda:0", "device_reason": None, "gpu": card, "determinism": {"tf32": False}}
    cpu = {"device": "cpu", "device_reason": "no GPU", "gpu": None, "determinism": None}
    headers = [
        {"plan_sha256": "feed", "model_file": None, **gpu},
        {"plan_sha256": "x", **cpu},
        None,
    ]
    measured = {"schema": 1, "links": []}
    told = told_by_ranks({"probe": measured}, headers, cluster_spec(3, 1))
    assert (told["plan_sha256"], told["probe"]) == ("feed", measured)
    assert told["devices"] == [gpu, cpu, dict.fromkeys(gpu)]
