"""What nobody should type, to every verb: no traceback, no hang, an exit code, and what to do.

A verb that is new joins the first table of `tests.jobs.nonsense`; the values, files and places
there are tried on all of them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import cluster.lab
import cluster.links
from cluster.errors import HostError
from cluster.lab import Lab
from jobs.verbs import VERBS, ddplab
from tests.jobs.command import call, valid
from tests.jobs.nonsense import BASE, FILES, HUGE, NONSENSE, PLACES, SPOILT_STATE, place

pytestmark = pytest.mark.usefixtures("own_folder")

FINE = {
    ("up", "--lab"): ("no-such-thing", "1e999", "nan", "1gbps"),
    ("runs-clean", "--keep"): (HUGE,),
}
"""What is no nonsense after all."""
OPEN_LAB = cluster.lab.open_lab


@pytest.fixture
def one_lab(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lab `default` is up; whatever else is asked for is looked up as ever."""

    def open_lab(name: str = "default") -> Lab:
        return lab if name == "default" else OPEN_LAB(name)

    for module in (cluster.lab, cluster.links):
        monkeypatch.setattr(module, "open_lab", open_lab)


@pytest.fixture(autouse=True)
def nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise HostError("a lab would be made", "none is in these tests", "refuse this input")

    monkeypatch.setattr("cluster.netns.start_holder", refused)
    monkeypatch.setattr("jobs.server.process.find_spec", lambda _: None)  # nor an exporter


def options_of(verb: str) -> Iterator[str]:
    command = ddplab.get_command(click.Context(ddplab), verb)
    assert command is not None
    for option in command.params:
        if isinstance(option, click.Option) and not option.is_flag:
            yield option.opts[0]


def takes_words(verb: str) -> bool:
    command = ddplab.get_command(click.Context(ddplab), verb)
    assert command is not None
    return any(isinstance(each, click.Argument) for each in command.params)


def base_without(verb: str, option: str) -> list[str]:
    words = list(BASE[verb])
    if option in words:
        place = words.index(option)
        del words[place : place + 2]
    return words


def require_an_answer(capsys: pytest.CaptureFixture[str], *words: str) -> None:
    """An error in words, with what to do; it does not steer the terminal; nothing is left."""
    code, out, err = call(capsys, *words)
    assert code in (1, 2), (words, code, out, err)
    assert err.startswith("ddplab:"), (words, err)
    assert max(len(line) for line in err.splitlines()) < 500, (words, err)
    if "\n  fix     " not in err:  # several faults of a file, a line each
        _, out, _ = call(capsys, *words, "--json")
        faults = json.loads(out)["error"]["message"].splitlines()
        assert len(faults) > 1 and all("; " in fault for fault in faults), (words, faults)
    else:
        assert "\n  rule    " in err, (words, err)
    assert not set(out + err) & set("\x1b\x07\0"), (words, out + err)
    assert not Path("runs").exists(), words
    assert cluster.lab.list_labs() == (), words


def require_json(capsys: pytest.CaptureFixture[str], *words: str) -> None:
    code, out, err = call(capsys, *words, "--json")
    error = valid(out, "error")["error"]
    assert code in (1, 2) and err == "", (words, code, err)
    assert error["fix"], (words, error)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_tried(verb: str) -> None:
    assert verb in BASE, f"a new verb: say in BASE how it is called rightly, {verb!r}"


@pytest.mark.parametrize("verb", VERBS)
def test_words_that_are_none(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    for words in (
        ["--no-such-option"],
        ["--no-such-option", "x"],
        ["--json=yes"],
        ["-\x1b[31m"],
        ["--\udcff"],
    ):
        require_an_answer(capsys, verb, *words, *BASE[verb])
    require_json(capsys, verb, "--no-such-option", *BASE[verb])


@pytest.mark.parametrize("verb", [verb for verb in VERBS if takes_words(verb)])
@pytest.mark.usefixtures("one_lab")
def test_jobs_that_are_none(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    job, *options = BASE[verb]
    for value in NONSENSE:
        require_an_answer(capsys, verb, *[o for o in options if o != "hier"], "--", job, value)
        require_an_answer(capsys, verb, *[o for o in options if o != "hier"], "--", value)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if not takes_words(verb)])
def test_words_where_none_belong(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    for value in NONSENSE:
        require_an_answer(capsys, verb, *BASE[verb], "--", value)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.usefixtures("one_lab")
def test_values_that_are_none(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    wrong = []
    for option in options_of(verb):
        require_json(capsys, verb, *base_without(verb, option), f"{option}={NONSENSE[0]}")
        for value in (each for each in NONSENSE if each not in FINE.get((verb, option), ())):
            try:
                require_an_answer(capsys, verb, *base_without(verb, option), f"{option}={value}")
            except Exception as exc:
                wrong.append(f"{option}={value[:40]!r}: {type(exc).__name__}: {str(exc)[:700]}")
    assert not wrong, "\n".join(wrong)


TAKES_FILES = {"cluster": ("up", "--dry-run", "--cluster"), "job": ("run", "--print-config")}


@pytest.mark.parametrize("words", TAKES_FILES.values(), ids=TAKES_FILES)
@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_files_that_say_nothing_right(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], content: bytes
) -> None:
    Path("file.yaml").write_bytes(content)
    require_an_answer(capsys, *words, "file.yaml")


@pytest.mark.parametrize("kind", [*PLACES, "too long", "missing, an odd name"])
@pytest.mark.usefixtures("one_lab")
def test_places_that_hold_no_file(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    name = place(kind)
    for words in (*TAKES_FILES.values(), ("run", "hier", "--data")):
        if kind != "folder" or "--data" not in words:
            require_an_answer(capsys, *words, name)
    if kind == "folder":  # with nothing in it
        require_an_answer(capsys, "run", "hier", "--data", name)


@pytest.mark.parametrize("content", SPOILT_STATE.values(), ids=SPOILT_STATE)
@pytest.mark.parametrize("verb", ["probe", "run", "link", "down", "compare", "up"])
def test_state_that_was_spoilt(capsys: pytest.CaptureFixture[str], verb: str, content: str) -> None:
    folder = Path("state/ddplab/default")
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o700)
    (folder / "state.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    words = [word for word in BASE[verb] if verb != "up"]
    code, out, err = call(capsys, verb, *words)
    assert code == 1, (out, err)
    assert "  fix     " in err
    assert (folder / "state.json").exists()  # nothing is thrown away that cannot be understood
    code, out, _ = call(capsys, "status", "--json")
    (found,) = json.loads(out)["labs"]
    assert (code, found["lab"], found["state"]) == (0, "default", "unreadable")
    code, out, _ = call(capsys, "status")
    assert code == 0
    assert "unreadable" in out and "cannot be read" in out and "fix: " in out


@pytest.mark.parametrize("kind", ["file", "link", "open to all"])
@pytest.mark.parametrize("verb", ["up", "status", "run", "down"])
def test_a_state_folder_that_cannot_be_trusted(
    capsys: pytest.CaptureFixture[str], verb: str, kind: str
) -> None:
    root = Path("state/ddplab")
    if kind == "file":
        root.write_text("")
    elif kind == "link":
        root.symlink_to("/tmp")
    else:
        root.mkdir()
        root.chmod(0o777)
    code, _, err = call(capsys, verb, *[word for word in BASE[verb] if word != "--dry-run"])
    assert code == 1
    words = " ".join(err.split())
    assert "cannot be trusted" in words or "cannot be made" in words
    assert "  fix     " in err


@pytest.mark.parametrize(
    "words",
    [
        ("up", "--dry-run", "--backend=netns"),
        ("status",),
        ("status", "--json"),
        ("run", "hier", "--print-config"),
        ("runs",),
        ("runs", "--json"),
        ("runs-clean", "--keep=1"),
    ],
)
def test_an_output_that_takes_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        code, _, err = call(capsys, *words)
        monkeypatch.undo()
    assert code == 1
    assert "ddplab: standard output: No space left on device" in err
    assert "  fix     " in err


@pytest.mark.parametrize("columns", ["", "0", "-5", "1", "wide", "9" * 30, "\uff11\uff12"])
def test_a_terminal_of_any_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    code, out, err = call(capsys, "runs")
    assert (code, err) == (0, "")
    assert "No runs yet." in out
