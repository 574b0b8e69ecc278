"""Which backend is taken, why, and what an error of one that nobody asked for adds."""

from dataclasses import replace

import pytest

from cluster.backends import BACKENDS, Chosen, choose_backend, naming_others, require_privilege
from cluster.errors import ClusterError, HostError, LabExists, NodeError, ProbeFailed
from cluster.netns import NETNS
from cluster.nodes import Backend, Fit, Making
from cluster.spec import ClusterSpec, load_cluster
from tests.cluster.remembered import backend_of, only


def unfit(name: str, reason: str) -> Backend:
    made = backend_of(name, lambda *_: None, lambda *_: None)
    return replace(made, fit=lambda: Fit(False, reason))


AUTO = Making()
SPEC = load_cluster("2x2")
FIRST = unfit("first", "there is no first")
SECOND = backend_of("second", lambda *_: None, lambda *_: None)


def test_the_order_is_that_of_auto() -> None:
    assert list(BACKENDS) == ["compose", "netns"]
    assert [each.name for each in BACKENDS.values()] == list(BACKENDS)
    assert BACKENDS["netns"].fit().ok


def test_auto_takes_the_first_that_fits_and_says_why_not_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, FIRST, SECOND)
    assert choose_backend(AUTO) == Chosen(SECOND, "there is no first; words need nothing")
    only(monkeypatch, SECOND, FIRST)
    assert choose_backend(AUTO) == Chosen(SECOND, "words need nothing")
    only(monkeypatch, unfit("a", "no a"), FIRST)
    assert choose_backend(AUTO) == Chosen(FIRST, "no a; there is no first")


def test_a_privilege_is_for_namespaces() -> None:
    found = choose_backend(Making(privilege="sudo"))
    assert found == Chosen(NETNS, "PRIVILEGE=sudo is for network namespaces")


def test_what_is_asked_for_is_taken_whether_it_fits_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, FIRST, SECOND)
    assert choose_backend(Making("first")) == Chosen(FIRST)
    with pytest.raises(ClusterError, match="unknown backend 'frist'") as caught:
        choose_backend(Making("frist"))
    assert 'did you mean "first"?' in caught.value.fix[0]


@pytest.mark.parametrize("kind", [HostError, NodeError])
def test_what_auto_took_and_cannot_do_names_the_others(
    monkeypatch: pytest.MonkeyPatch, kind: type[ClusterError]
) -> None:
    only(monkeypatch, SECOND, FIRST)
    with pytest.raises(kind) as caught, naming_others(Chosen(SECOND, "it answers"), SPEC, AUTO):
        raise kind("it broke", None, "mend it")
    assert caught.value.fix == ("mend it", "BACKEND=first     in words")


def test_others_are_not_named_where_they_would_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, SECOND, FIRST)
    for chosen, error in (
        (Chosen(SECOND), HostError("it broke", None, "mend it")),  # it was asked for
        (Chosen(FIRST, "last"), HostError("it broke", None, "mend it")),  # there is none after it
        (Chosen(SECOND, "it answers"), ProbeFailed("too slow", None, "mend it")),
        (Chosen(SECOND, "it answers"), LabExists("another's", None, "mend it")),
        (Chosen(SECOND, "it answers"), HostError("it broke", None, "mend it")),
    ):
        fixes = ("mend it",)
        if error.kind == "host_error" and chosen == Chosen(SECOND, "it answers"):
            error.fix = fixes = ("BACKEND=first is there",)
        with pytest.raises(type(error)) as caught, naming_others(chosen, SPEC, AUTO):
            raise error
        assert caught.value.fix == fixes


@pytest.mark.parametrize(
    ("spec", "making"),
    [
        (SPEC, Making(monitoring=True)),
        (ClusterSpec.from_dict({**SPEC.to_dict(), "limits": {"cpus": 1}}), AUTO),
    ],
)
def test_nor_where_only_containers_have_what_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, spec: ClusterSpec, making: Making
) -> None:
    only(monkeypatch, SECOND, FIRST)
    with (
        pytest.raises(HostError) as caught,
        naming_others(Chosen(SECOND, "it answers"), spec, making),
    ):
        raise HostError("it broke", None, "mend it")
    assert caught.value.fix == ("mend it",)


def test_privileges() -> None:
    require_privilege("none")
    require_privilege("sudo")
    with pytest.raises(ClusterError, match="unknown privilege 'root'"):
        require_privilege("root")
