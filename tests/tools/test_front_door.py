"""What make does with words and variables: nothing typed is lost, expanded, or silently ignored."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from cluster.backends import AUTO, BACKENDS
from tools.front import typed_variables
from tools.variables import VARIABLES
from tools.verbs import NUM_FIRST, VERBS, split_settings

if TYPE_CHECKING:
    from conftest import Checkout

NASTY = [
    "a b",
    "two  blanks  ",
    "it's",
    'say "hi"',
    "$(touch pwned)",
    "$(shell touch pwned)",
    "${HOME} $HOME $$ $",
    "`touch pwned`",
    "; touch pwned; #",
    "a & b | c > pwned < d",
    "back\\slash \\n \\",
    "two\nlines",
    "tab\there",
    "-x",
    "--help",
    "--",
    "*",
    "%",
    "a=b",
    "{forward_ms: 60, backward_ms: 120}",
    "grüße",
    "@:!~",
]


def test_make_alone_lists_every_word_and_first_the_five_that_matter(
    checkout: Checkout,
) -> None:
    screen = checkout.make().stdout
    assert screen == checkout.make("help").stdout
    words = re.findall(r"^  make (\S+)", screen, re.MULTILINE)
    assert words == list(VERBS)
    first, _, rest = screen.partition("\n\n")[2].partition("\n\n")
    assert len(re.findall(r"^  make ", first, re.MULTILINE)) == NUM_FIRST == 5
    others = re.findall(r"^  make ", rest.partition("\n\n")[0], re.MULTILINE)
    assert len(others) == len(VERBS) - NUM_FIRST
    assert max(len(line) for line in screen.splitlines()) <= 100
    assert "hier ring, or a file" in screen
    assert checkout.environments() == []


def test_the_meaning_of_backend_names_every_backend() -> None:
    known = re.findall(r"[a-z]+", VARIABLES["BACKEND"])
    assert {AUTO, *BACKENDS} <= set(known)


def test_the_makefile_and_the_table_know_the_same_words(checkout: Checkout) -> None:
    text = (checkout.root / "Makefile").read_text().replace("\\\n", " ")
    listed = re.search(r"^override TARGETS := (.*)$", text, re.MULTILINE)
    assert listed is not None
    assert sorted(listed[1].split()) == sorted(VERBS)


def test_nasty_values_arrive_as_they_were_typed(ready: Checkout) -> None:
    for number in range(0, len(NASTY), 3):
        job, data, lab = (NASTY * 2)[number : number + 3]
        done = ready.make("run", f"JOB={job}", f"DATA={data}", f"LAB={lab}")
        assert done.returncode == 0, (job, data, lab, done.stderr)
        assert ready.calls()[-1] == ["run", f"--lab={lab}", f"--data={data}", "--", job]
    assert not list(ready.root.rglob("pwned"))


@pytest.mark.parametrize("value", NASTY)
def test_typed_variables_undoes_what_make_does_to_a_value(value: str) -> None:
    made = re.sub(r"([ \t\\])", r"\\\1", value.replace("$", "$$"))
    assert typed_variables(f"JOB={made} RATE:=1gbit") == {"JOB": value, "RATE": "1gbit"}


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("train.steps=3 pace=null", ["train.steps=3", "pace=null"]),
        ("pace={forward_ms: 60, backward_ms: 1}", ["pace={forward_ms: 60, backward_ms: 1}"]),
        ("data.path=/a b/c  train.lr=1", ["data.path=/a b/c", "train.lr=1"]),
        ("name='x y' a_b.c=[1, 2]", ["name='x y'", "a_b.c=[1, 2]"]),
        ("nothing", ["nothing"]),
        (" a=1\n b=2", ["a=1", "b=2"]),
        ("", []),
    ],
)
def test_a_setting_begins_where_a_word_has_an_equals_sign(text: str, settings: list[str]) -> None:
    assert split_settings(text) == settings


def test_each_word_becomes_its_command(ready: Checkout) -> None:
    ready.make(
        "cluster-up", "CLUSTER=2x4", "RATE=1gbit", "PRIVILEGE=sudo", "BACKEND=netns", "LAB=a"
    )
    ready.make("cluster-up", "BACKEND=compose", "SUBNET=10.99.0.0/24", "MONITORING=1")
    ready.make("cluster-status", "LAB=a")
    ready.make("cluster-probe", "LAB=--x")
    ready.make("cluster-down", "LAB=a")
    ready.make("run", "JOB=hier", "STEPS=5", "SET=pace=null train.lr=1", "LAB=a")
    ready.make("scale", "JOBS=ring  hier", "NODES=1 2", "SCALING=strong", "ROUNDS=2", "STEPS=5")
    ready.make("compare", "JOBS=ring hier", "BASE=hier", "MAX_SLOWDOWN=5%", "ROUNDS=2", "LAB=a")
    ready.make("compare", "RUNS=latest my-run", "ALLOW_DIFFERENT=1")
    ready.make("proof")
    ready.make("proof", "algorithms")
    ready.make("cluster-up", "proof", "algorithms", "cluster-down", "ALL=1")
    ready.make("runs")
    ready.make("runs-clean", "KEEP=3")
    assert ready.calls() == [
        ["up", "--cluster=2x4", "--rate=1gbit", "--backend=netns", "--lab=a", "--privilege=sudo"],
        ["up", "--backend=compose", "--subnet=10.99.0.0/24", "--monitoring"],
        ["status", "--lab=a"],
        ["probe", "--lab=--x"],
        ["down", "--lab=a"],
        ["run", "--lab=a", "--steps=5", "--set=pace=null", "--set=train.lr=1", "--", "hier"],
        [
            *("scale", "--nodes=1 2", "--scaling=strong", "--rounds=2", "--steps=5"),
            *("--", "ring", "hier"),
        ],
        [
            *("compare", "--lab=a", "--rounds=2", "--base=hier", "--max-slowdown=5%"),
            *("--", "ring", "hier"),
        ],
        ["compare", "--runs=latest my-run", "--allow-different"],
        ["proof"],
        ["proof", "algorithms"],
        ["up"],
        ["proof", "--all", "algorithms"],
        ["down"],
        ["runs"],
        ["runs-clean", "--keep=3"],
    ]


def test_variables_of_the_environment_do_not_count(ready: Checkout) -> None:
    outside = {
        "RATE": "1gbit",
        "LAB": "other",
        "SET": "a=b",
        "DDPLAB_GOALS": "x",
        "PYTHON": "/none",
    }
    assert ready.make("run", "JOB=hier", **outside).returncode == 0
    assert ready.make("-e", "run", "JOB=hier", **outside).returncode == 0
    assert ready.calls() == [["run", "--", "hier"]] * 2
    missing = ready.make("run", JOB="hier")
    assert missing.returncode != 0
    assert "run needs JOB" in missing.stderr
    assert "fix     make run JOB=hier" in missing.stderr


def test_makes_own_variables_do_not_reach_the_command(ready: Checkout) -> None:
    ready.make("-j3", "run", "JOB=$(shell touch pwned)")
    names = set(ready.called_with_environment())
    assert not names & {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "DDPLAB_GOALS", "DDPLAB_TYPED", "JOB"}


@pytest.mark.parametrize(
    ("words", "seen", "fix"),
    [
        (["run", "JBO=hier"], "JBO=hier", "make run JOB=hier"),
        (["run", "job=a b"], "job='a b'", "make run JOB='a b'"),
        (["cluster-up", "JOB=hier"], "JOB=hier", "JOB belongs to make run"),
        (["run", "JOB=hier", "TORCH=x"], "TORCH=x", "TORCH belongs to make setup"),
        (["runs", "XYZZY=1"], "XYZZY=1", "make runs, without it"),
        (["run", "JOB="], "JOB=''", "leave JOB out"),
        (["runs-clean"], "make runs-clean, without KEEP", "make runs-clean KEEP=10"),
        (["run", "JOB=hier", "RATE= "], "RATE=''", "leave RATE out"),
        (["JOB=hier"], "JOB=hier", "JOB belongs to make run"),
        (["compare"], "make compare, without JOBS", 'make compare JOBS="ring hier"'),
        (
            ["compare", "JOBS=a b", "ALLOW_DIFFERENT=yes"],
            "ALLOW_DIFFERENT=yes",
            "ALLOW_DIFFERENT=1",
        ),
        (["xyzzy", "JOB=x"], "make xyzzy JOB=x", "make help"),
        (["clustr-up", "RATE=1gbit"], "make clustr-up RATE=1gbit", "make cluster-up RATE=1gbit"),
        (["tools"], "make tools", ""),
        (["pyproject.toml"], "make pyproject.toml", "make help"),
        (["jobs/catalog"], "make jobs/catalog", ""),
        (["algorithms"], "make algorithms", "make proof algorithms"),
        (["algorithms", "proof"], "make algorithms", "make proof algorithms"),
        (["proof", "runs", "algorithms"], "make algorithms", "make proof algorithms"),
        (["proof", "ALL=yes"], "ALL=yes", "ALL=1"),
        (["bench-ddp", "CHECK=yes"], "CHECK=yes", "CHECK=1"),
        (["a:b"], "make a:b", ""),
        (["$(shell touch pwned)"], "make '$(shell'", ""),
        (["run", "tools", "JOB=hier"], "make tools JOB=hier", ""),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_built(
    checkout: Checkout, words: list[str], seen: str, fix: str
) -> None:
    done = checkout.make(*words)
    assert done.returncode != 0
    assert done.stderr.startswith("ddplab: ")
    assert f"  seen    {seen}" in done.stderr
    assert f"  fix     {fix}" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not (checkout.root / ".venvs").exists()
    assert not (checkout.root / "pwned").exists()


def test_several_words_take_their_own_variables_in_order_also_with_j(ready: Checkout) -> None:
    done = ready.make(
        "-j8", "cluster-up", "run", "cluster-down", "CLUSTER=2x4", "JOB=hier", "LAB=a"
    )
    assert done.returncode == 0, done.stderr
    assert ready.calls() == [
        ["up", "--cluster=2x4", "--lab=a"],
        ["run", "--lab=a", "--", "hier"],
        ["down", "--lab=a"],
    ]


def test_a_failing_command_fails_make_and_what_follows_does_not_run(ready: Checkout) -> None:
    assert ready.make("cluster-up", "cluster-status", "LAB=bad").returncode != 0
    assert ready.calls() == [["up", "--lab=bad"]]


def test_dry_run_shows_and_runs_nothing_and_make_works_from_elsewhere(ready: Checkout) -> None:
    dry = ready.make("-n", "run", "JOB=hier")
    assert dry.returncode == 0
    assert dry.stdout == "/bin/sh tools/front.sh run\n"
    assert ready.calls() == []
    assert ready.make("-C", str(ready.root), "run", "JOB=hier").returncode == 0
    assert ready.calls() == [["run", "--", "hier"]]


def test_a_make_above_hands_its_variables_down_as_they_were_typed(ready: Checkout) -> None:
    above = ready.outside / "above.mk"
    above.write_text(f"all:\n\t$(MAKE) -C '{ready.root}' run\n")
    done = ready.make("-f", str(above), "all", "JOB=a $b $$c")
    assert done.returncode == 0, done.stderr
    assert ready.calls() == [["run", "--", "a $b $$c"]]
