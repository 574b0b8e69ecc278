"""`make doctor` before there is an environment, or with one that does not work: it answers."""

from __future__ import annotations

import ast
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster.doctor.checks import FAULT, NOT_HERE, OK, SKIPPED, WARNING
from tools import doctor, prerequisites
from tools.doctor import (
    absent_check,
    alone,
    commands_check,
    environment_check,
    look,
    python_check,
    size_of,
    venv_check,
    way_check,
    why_not,
)
from tools.errors import FrontDoorError
from tools.prerequisites import Interpreter

if TYPE_CHECKING:
    from conftest import Checkout

ROOT = Path(__file__).parents[2]
GOOD = Interpreter("/usr/bin/python3", "3.11.2")
OLD = Interpreter("/usr/bin/python3", "3.9.2")
BARE = Interpreter("/usr/bin/python3", "3.12.3", "ensurepip")
# Plays the Python of an environment that has the packages this one has.
FINDS_PACKAGES = """\
#!/bin/sh
export PYTHONPATH='{packages}'
for word; do
    shift
    test "$word" = -E || set -- "$@" "$word"
done
exec '{real}' "$@"
"""
READ_BY_ANY_PYTHON = (
    "tools/doctor.py",
    "tools/front.py",
    "tools/verbs.py",
    "tools/errors.py",
    "tools/environment.py",
    "tools/prerequisites.py",
    "tools/build.py",
    "tools/commands.py",
    "cluster/doctor/checks.py",
    "cluster/packages.py",
    "jobs/report/doctor_screen.py",
)


@pytest.fixture
def whole(checkout: Checkout) -> Checkout:
    """A checkout with the program's own packages, without an environment."""
    for package in ("cluster", "jobs"):
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, checkout.root / package, dirs_exist_ok=True, ignore=skip)
    return checkout


def handed_over(checkout: Checkout) -> tuple[list[str], dict[str, str]]:
    """How `ddplab` was called, without what was seen before, and the states of that."""
    (words,) = checkout.calls()
    (before,) = [word for word in words if word.startswith("--before=")]
    checks = json.loads(before.partition("=")[2])
    words.remove(before)
    return words, {name: state for name, state, _seen, _fix in checks}


def test_without_an_environment_it_answers_and_builds_none(whole: Checkout) -> None:
    done = whole.make("doctor", COLUMNS="100")
    assert "Traceback" not in done.stdout + done.stderr
    assert whole.pip() == []
    assert not (whole.root / ".venvs").exists()
    lines = {line[13:26].strip(): line for line in done.stdout.splitlines() if line[2:3].strip()}
    assert lines["python"].startswith("  ok         python       3.11.9")
    assert lines["venv"].startswith("  ok ")
    assert lines["environment"].startswith("  not here   environment  not made yet")
    for name in ("commands", "namespaces", "tbf", "memory", "disk", "files", "state", "ports"):
        assert name in lines
    assert lines["torch"].startswith("  not tried  torch")
    assert lines["rate"].startswith("  not tried  rate")
    faults = [name for name, line in lines.items() if line.startswith("  FAULT")]
    assert (done.returncode == 0) == (not faults), faults


def test_with_an_environment_the_command_goes_on_from_what_was_seen(ready: Checkout) -> None:
    for package in ("cluster", "jobs"):
        shutil.copytree(ROOT / package, ready.root / package, dirs_exist_ok=True)
    packages = ":".join(path for path in sys.path if path.endswith("site-packages"))
    python = ready.root / ".venv" / "bin" / "python"
    python.unlink()
    python.write_text(FINDS_PACKAGES.format(packages=packages, real=sys.executable))
    python.chmod(0o755)
    done = ready.make("doctor", "CLUSTER=4x2", "RATE=1gbit", "QUICK=1", "PRIVILEGE=sudo")
    assert done.returncode == 0, done.stderr
    words, states = handed_over(ready)
    assert words == ["doctor", "--cluster=4x2", "--rate=1gbit", "--privilege=sudo", "--quick"]
    assert states == {"python": OK, "venv": OK, "environment": OK}
    assert ready.pip() == []


def test_a_venv_of_somebody_else_is_a_fault_and_the_rest_is_told(whole: Checkout) -> None:
    (whole.root / ".venv").mkdir()
    done = whole.make("doctor")
    assert done.returncode != 0
    assert "  FAULT      environment  " in done.stdout
    assert "mv .venv .venv-mine" in done.stdout
    assert "  ok         commands" in done.stdout


@pytest.mark.parametrize(
    "words", [("doctor", "CLUSTR=2x2"), ("doctor", "QUICK=yes"), ("doctor", "JOB=hier")]
)
def test_what_cannot_be_meant_is_refused(whole: Checkout, words: tuple[str, ...]) -> None:
    done = whole.make(*words)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "  fix     " in done.stderr


def test_an_old_python_is_named_with_the_way_to_another_one() -> None:
    check = python_check([OLD, OLD])
    assert check.state == FAULT
    assert check.seen.startswith("only 3.9.2 (/usr/bin/python3): 3.11 or newer")
    assert "python3.11" in check.fix[0]
    assert check.fix[0].partition("     ")[0].endswith("make setup PYTHON=python3.11")
    assert venv_check([OLD], needed=True).state == SKIPPED
    assert python_check([]).seen.startswith("none that starts")
    assert python_check([OLD, GOOD]).seen == "3.11.2, /usr/bin/python3"


def test_a_python_without_ensurepip_is_a_fault_unless_the_environment_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prerequisites, "venv_package", lambda _one: "python3.12-venv")
    check = venv_check([BARE], needed=True)
    assert check.state == FAULT
    assert check.seen == "/usr/bin/python3 (3.12.3) has no module ensurepip"
    assert "python3.12-venv" in check.fix[0] or "python3" in check.fix[0]
    assert venv_check([BARE], needed=False).state == WARNING
    assert venv_check([BARE, GOOD], needed=True).state == OK
    assert python_check([BARE]).state == OK


def test_a_missing_command_is_named_also_where_python_is_too_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert commands_check().state == OK
    which = {name: name for name in prerequisites.PACKAGES if name != "tc"}
    monkeypatch.setattr(shutil, "which", lambda name, **_: which.get(name))
    check = commands_check()
    assert (check.state, check.seen) == (FAULT, "no tc on the search path")
    assert "iproute" in check.fix[0]


def test_a_full_disk_has_no_room_for_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert absent_check(tmp_path).state == NOT_HERE
    monkeypatch.setattr(doctor, "ENVIRONMENT_BYTES", shutil.disk_usage(tmp_path).total)
    check = absent_check(tmp_path)
    assert check.state == FAULT
    assert "free about 2 GB" in check.fix[0]


def test_an_environment_that_does_not_work_is_a_fault(ready: Checkout) -> None:
    """This one has a Python, and none of the packages."""
    why = why_not((ready.root / ".venv").resolve(), ready.root)
    assert "No module named" in why
    check = environment_check(why, is_fitting=True)
    assert check.state == FAULT
    assert why in check.seen
    assert check.fix == ("rm -r .venv .venvs && make setup",)
    assert environment_check(why, is_fitting=False).state == WARNING
    assert environment_check("", is_fitting=False).state == WARNING
    (ready.root / ".venv" / "bin" / "python").unlink()
    assert look(ready.root).environment is None


@pytest.fixture
def server() -> Iterator[str]:
    class Refuses(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(403)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Refuses) as it:
        thread = threading.Thread(target=it.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{it.server_port}/whl"
        it.shutdown()
        thread.join()


def test_the_way_to_packages(server: str) -> None:
    """Any answer is one; a place that cannot be reached is a warning: pip may know another."""
    assert way_check(server).state == OK
    check = way_check("http://127.0.0.1:9/whl")
    assert check.state == WARNING
    assert check.seen.startswith("127.0.0.1:9 cannot be reached (")
    assert "TORCH_INDEX_URL" in check.fix[0]


def test_the_size_of_a_cluster_is_read_without_a_parser(tmp_path: Path) -> None:
    for file in (ROOT / "cluster" / "catalog").glob("*x*.yaml"):
        assert "x".join(map(str, size_of(ROOT, file.stem))) == file.stem
    mine = tmp_path / "mine.yaml"
    mine.write_text("name: mine\nranks_per_node: 8   # many\nnodes: 3\n")
    assert size_of(ROOT, str(mine)) == (3, 8)


@pytest.mark.parametrize(
    ("cluster", "privilege", "seen", "fix"),
    [
        ("4x3", "none", "CLUSTER=4x3: No such file", "make doctor CLUSTER=4x"),
        ("./x.yaml", "none", "CLUSTER=./x.yaml: No such file", "make doctor CLUSTER=2x2"),
        ("~nobody-of-this-name/x.yaml", "none", "CLUSTER='~nobody", "make doctor CLUSTER=2x2"),
        ("/", "none", "CLUSTER=/: Is a directory", "make doctor CLUSTER=2x2"),
        ("2x2", "foo", "PRIVILEGE=foo", "make doctor PRIVILEGE=sudo"),
    ],
)
def test_what_no_lab_could_be_is_refused_before_anything_is_tried(
    capsys: pytest.CaptureFixture[str], cluster: str, privilege: str, seen: str, fix: str
) -> None:
    with pytest.raises(FrontDoorError) as caught:
        alone(ROOT, [], cluster, privilege)
    rows = dict(caught.value.rows)
    assert rows["seen"].startswith(seen)
    assert fix in rows["fix"]
    assert ("2x4" if privilege == "none" else "none or sudo") in rows["rule"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", READ_BY_ANY_PYTHON)
def test_the_front_door_can_be_read_by_old_pythons(name: str) -> None:
    ast.parse((ROOT / name).read_text("utf-8"), feature_version=(3, 8))


def test_all_but_the_measurement_needs_the_standard_library_alone() -> None:
    script = (
        "from pathlib import Path\nfrom cluster.doctor.room import Size\n"
        "from jobs.doctor import alone\nimport sys\n"
        "alone(Size(2, 2), Path('runs'), 'none')\n"
        "print(*(name for name in ('pydantic', 'yaml', 'click', 'rich', 'torch') "
        "if name in sys.modules))"
    )
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path[0:0] = [{str(ROOT)!r}]\n{script}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_what_it_refers_to_is_in_the_book() -> None:
    """Every place in docs/troubleshooting.md that the code names has its heading there."""
    named = {
        match
        for package in ("cluster", "jobs", "tools")
        for file in (ROOT / package).rglob("*.py")
        for match in re.findall(r"docs/troubleshooting\.md#([a-z-]+)", file.read_text("utf-8"))
    }
    book = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    headings = re.findall(r"^## (.+)$", book, re.MULTILINE)
    anchors = {re.sub(r"[^a-z -]", "", each.lower()).replace(" ", "-") for each in headings}
    assert {"user-namespaces", "missing-packages", "the-rate-is-too-high"} <= named <= anchors
