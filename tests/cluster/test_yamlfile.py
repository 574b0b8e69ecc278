"""Strict YAML: what is refused, where, and that everything is refused at once."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Discriminator, Field, Tag

from cluster.errors import Fault, SpecError
from cluster.yamlfile import StrictModel, load_yaml, nearest, validate


class Optimizer(StrictModel):
    kind: Literal["adamw", "sgd"] = "adamw"
    lr: float = 0.001
    momentum: float = 0.0


class Data(StrictModel):
    path: str | None = None
    sizes: tuple[int, ...] = ()


class Job(StrictModel):
    name: str
    steps: Annotated[int, Field(ge=1)] = 1
    overlap: bool = True
    optimizer: Optimizer = Optimizer()
    data: Data = Data()
    per_node: Annotated[dict[str, Data], Field(default={})]


def faults(text: str) -> tuple[Fault, ...]:
    with pytest.raises(SpecError) as caught:
        validate(Job, load_yaml(text, name="job.yaml"))
    return caught.value.faults


def only_fault(text: str) -> Fault:
    found = faults(text)
    assert len(found) == 1, found
    return found[0]


def test_a_value_put_below_a_plain_value_is_where_it_was_typed() -> None:
    document = load_yaml("name: x\nsteps: 3", name="job.yaml").assign("steps.x=3")
    with pytest.raises(SpecError) as caught:
        validate(Job, document)
    assert [fault.where for fault in caught.value.faults] == ["set steps.x=3"]


def test_a_single_fault_has_its_parts_apart() -> None:
    with pytest.raises(SpecError) as caught:
        validate(Job, load_yaml('name: x\nsteps: "1e6"', name="job.yaml"))
    error = caught.value
    assert error.message == 'job.yaml:2: steps: "1e6" (text)'
    assert (error.rule, error.fix) == ("must be a whole number", ("write 1000000",))


def test_reads_a_right_file() -> None:
    text = """
name: "on"
steps: 30
overlap: false
optimizer: {kind: sgd, lr: 1.0e-3}
data: {path: null, sizes: [1, 2]}
per_node: {node1: {path: x}}
"""
    job = validate(Job, load_yaml(text))
    assert job == Job(
        name="on",
        steps=30,
        overlap=False,
        optimizer=Optimizer(kind="sgd", lr=0.001),
        data=Data(path=None, sizes=(1, 2)),
        per_node={"node1": Data(path="x")},
    )


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("name: a\nname: b\n", 2, "name"),
        ("name: a\noptimizer:\n  lr: 0.1\n  lr: 0.2\n", 4, "optimizer.lr"),
        ("name: a\nper_node:\n  n:\n    path: x\n    path: y\n", 5, "per_node.n.path"),
    ],
)
def test_refuses_duplicate_keys_at_any_depth(text: str, line: int, key: str) -> None:
    fault = only_fault(text)
    assert (fault.where, fault.key) == (f"job.yaml:{line}", key)
    assert "twice" in fault.message
    assert fault.rule is not None and "already at job.yaml:" in fault.rule


def test_refuses_tabs_by_name() -> None:
    fault = only_fault("name: a\noptimizer:\n\tlr: 0.1\n")
    assert fault.where == "job.yaml:3"
    assert "tab" in fault.message


@pytest.mark.parametrize(
    "word",
    ["on", "off", "yes", "No", "12:30", "29400:22", "010", "0x10", "1_000", "2026-11-30", ".inf"],
)
@pytest.mark.parametrize("key", ["name", "steps", "overlap"])
def test_refuses_words_that_yaml_turns_into_something_else(word: str, key: str) -> None:
    text = f"{key}: {word}\n" if key == "name" else f"name: a\n{key}: {word}\n"
    fault = only_fault(text)
    assert fault.key == key
    assert repr(word) in fault.message
    assert fault.fix is not None and f'"{word}" in quotes' in fault.fix


@pytest.mark.parametrize("word", ["on", "12:30", "5", "null"])
def test_refuses_keys_that_are_no_words(word: str) -> None:
    fault = only_fault(f"name: a\n{word}: 1\n")
    assert fault.where == "job.yaml:2"
    assert repr(word) in fault.message


@pytest.mark.parametrize(
    ("line", "key", "fix"),
    [
        ("steps: 1e6", "steps", "write 1000000"),
        ("steps: 1.5", "steps", "write a whole number"),
        ('steps: "5"', "steps", "write 5"),
        ("steps: true", "steps", "write a whole number"),
        ("steps: 0", "steps", "write 1 or more"),
        ("optimizer: {lr: 1e-3}", "optimizer.lr", "write 0.001"),
        ("optimizer: {kind: adamm}", "optimizer.kind", 'did you mean "adamw"? known: adamw, sgd'),
        ("optimizer: 3", "optimizer", "write a set of keys"),
        ("data: {path: 5}", "data.path", 'write "5" in quotes'),
        ("data: {sizes: [1, x]}", "data.sizes.1", "write a whole number"),
        ("overlap: 1", "overlap", "write true or false"),
    ],
)
def test_refuses_wrong_types_by_name(line: str, key: str, fix: str) -> None:
    fault = only_fault(f"name: a\n{line}\n")
    assert (fault.where, fault.key, fault.fix) == ("job.yaml:2", key, fix)


@pytest.mark.parametrize(
    ("line", "key", "hint"),
    [
        ("step: 3", "step", 'did you mean "steps"?'),
        ("optimizer: {momentun: 1}", "optimizer.momentun", 'did you mean "momentum"?'),
        ("optimiser: {}", "optimiser", 'did you mean "optimizer"?'),
        ("lr: 0.1", "lr", "belongs at optimizer.lr"),
        ("path: x", "path", "belongs at data.path or per_node.*.path"),
        ("zebra: 1", "zebra", "known: data, name, optimizer, overlap, per_node, steps"),
    ],
)
def test_unknown_keys_name_the_nearest_or_the_right_place(line: str, key: str, hint: str) -> None:
    fault = only_fault(f"name: a\n{line}\n")
    assert (fault.where, fault.key, fault.message) == ("job.yaml:2", key, "unknown key")
    assert fault.fix is not None and hint in fault.fix


def test_reports_every_fault_at_once_in_the_order_of_the_file() -> None:
    found = faults("steps: 1e6\nsteps: 2\nlr: 0.1\noptimizer:\n  kind: on\n  lr: no\n")
    assert [(fault.where, fault.key) for fault in found] == [
        ("job.yaml:1", "name"),
        ("job.yaml:1", "steps"),
        ("job.yaml:2", "steps"),
        ("job.yaml:3", "lr"),
        ("job.yaml:5", "optimizer.kind"),
        ("job.yaml:6", "optimizer.lr"),
    ]


@pytest.mark.parametrize(
    "text",
    ["", "- a\n- b\n", "just text", "a: [1, 2", "a: b: c", "a: &x 1\nb: *x\n", "a: !!set {}"],
)
def test_refuses_what_is_no_set_of_keys_or_not_plain(text: str) -> None:
    assert all(fault.where.startswith("job.yaml") for fault in faults(text))


def test_recursive_alias_ends() -> None:
    assert any("alias" in fault.message for fault in faults("name: &a [*a]\n"))


def test_a_missing_file_and_a_binary_one(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file"):
        load_yaml(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="cannot be read"):
        load_yaml(tmp_path / "binary.yaml")
    with pytest.raises(SpecError, match="cannot be read"):
        load_yaml(tmp_path)


def test_assignments_replace_values_and_are_named_in_faults() -> None:
    document = load_yaml("name: a\noptimizer: {lr: 0.1}\n", name="job.yaml")
    changed = document.assign("optimizer.lr=0.5").assign("data.sizes=[3, 4]")
    job = validate(Job, changed)
    assert (job.optimizer.lr, job.data.sizes) == (0.5, (3, 4))
    assert validate(Job, document).optimizer.lr == 0.1
    for assignment, key in (("steps=1e6", "steps"), ("steps=on", "steps"), ("lr=1", "lr")):
        with pytest.raises(SpecError) as caught:
            validate(Job, document.assign(assignment))
        (fault,) = caught.value.faults
        assert (fault.where, fault.key) == (f"set {assignment}", key)


@pytest.mark.parametrize("text", ["steps", "=1", "a..b=1", ""])
def test_refuses_assignments_without_a_key(text: str) -> None:
    with pytest.raises(SpecError, match="key=value"):
        load_yaml("name: a\n").assign(text)


@pytest.mark.parametrize(
    ("word", "known", "hint"),
    [
        ("bucket-cap-mb", ["bucket_cap_mb", "x"], 'did you mean "bucket_cap_mb"?'),
        ("zebra", ["a", "b"], "known: a, b"),
        ("x", [], "known: none"),
    ],
)
def test_nearest(word: str, known: list[str], hint: str) -> None:
    assert hint in nearest(word, known)


def test_extra_values_never_reach_a_model() -> None:
    values: dict[str, Any] = validate(Job, load_yaml("name: a\n")).model_dump()
    assert set(values) == {"name", "steps", "overlap", "optimizer", "data", "per_node"}


class Round(StrictModel):
    kind: Literal["round"] = "round"
    radius: int = 1
    colour: str = "red"


class Square(StrictModel):
    kind: Literal["square"] = "square"
    side: int = 1
    colour: str = "red"


def kind_of(value: Any) -> str:
    return str(value.get("kind", "round")) if isinstance(value, dict) else "round"


class Drawing(StrictModel):
    shape: Annotated[
        Annotated[Round, Tag("round")] | Annotated[Square, Tag("square")], Discriminator(kind_of)
    ] = Round()
    shapes: dict[str, Round] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("shape: {kind: square, radius: 1}", '"radius" is a key of kind round; kind square has: '),
        ("shape: {kind: square, siide: 1}", 'did you mean "side"? kind square has: colour, kind'),
        ("shape: {sid: 1}", 'did you mean "side", a key of kind square? kind round has: colour,'),
        ("shape: {colours: 1}", 'did you mean "colour"? kind round has: colour, kind, radius'),
        ("shape: {kind: square, other: 1}", "unknown key; kind square has: colour, kind, side"),
        ("shape: {kind: sqare}", 'shape.kind: "sqare" (text); did you mean "square"? known: '),
        ("shape: {kind: square, side: x}", 'shape.side: "x" (text); must be a whole number'),
        ("shape: 5", "shape: 5 (a number); must be a set of keys"),
        ("radius: 1", "this key belongs at shape.radius of kind round or shapes.*.radius"),
        ("side: 1", "this key belongs at shape.side of kind square"),
        ("colour: 1", "this key belongs at shape.colour or shapes.*.colour"),
        ("shapes: {a: {radus: 1}}", 'shapes.a.radus: unknown key; did you mean "radius"? known:'),
    ],
)
def test_one_of_several_kinds_has_the_keys_of_its_kind(text: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        validate(Drawing, load_yaml(text))
    assert told in str(caught.value)


def test_a_document_without_one_of_its_keys() -> None:
    document = load_yaml("a: 1\nb:\n  c: 2\n")
    smaller = document.without("b")
    assert (smaller.data, document.data) == ({"a": 1}, {"a": 1, "b": {"c": 2}})
    assert smaller.where(("b", "c")) == "text:1"
    assert smaller.without("nothing like it").data == {"a": 1}


@pytest.mark.parametrize("assignment", ["data.path=caf\udce9", 'data.path="caf\\udce9"'])
def test_bytes_that_are_no_text_are_refused(assignment: str) -> None:
    with pytest.raises(SpecError, match="holds bytes that are no text") as caught:
        validate(Job, load_yaml("name: x").assign(assignment))
    str(caught.value).encode()
    assert len(caught.value.faults) == 1
