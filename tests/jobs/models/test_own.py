"""A model of one's own: what `build` gets, what it may return, and who is told what went wrong."""

import hashlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from jobs.errors import ModelError
from jobs.modelfile import MODULE_NAME, blame, read_source
from jobs.models import Model, build_model, next_byte_loss
from jobs.modelspec import OwnSpec
from tests.jobs.models.samples import random_bytes

PLAIN = """
from torch import nn

def build(context, width=16):
    return nn.Sequential(nn.Embedding(256, width), nn.Linear(width, 256))
"""
WITH_MODEL = """
from torch import nn
from jobs.models import Model

def loss(outputs, targets):
    {loss}

def build(context):
    module = nn.Sequential(nn.Embedding(256, 4), nn.Linear(4, 256))
    return Model(module, {more})
"""
Write = Callable[..., OwnSpec]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """`write(text, **spec)`: the spec of `build` in a file of that text."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def make(
        text: str | bytes, name: str = "my.py", function: str = "build", **more: Any
    ) -> OwnSpec:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return OwnSpec.model_validate({"import": f"{path}:{function}", **more})

    return make


def fails(spec: OwnSpec) -> str:
    with pytest.raises(ModelError) as caught:
        build_model(spec, seed=0)
    return str(caught.value)


def test_a_module_learns_to_predict_the_next_byte(write: Write) -> None:
    spec = write(PLAIN, settings={"width": 8})
    model = build_model(spec, seed=0)
    assert model.module[0].weight.shape == (256, 8)
    assert model.file is not None
    assert (model.file.path, model.file.function) == (str(spec.path), "build")
    assert model.file.sha256 == hashlib.sha256(spec.path.read_bytes()).hexdigest()
    inputs = random_bytes(2, 8)
    outputs = model.module(inputs)
    assert torch.equal(model.loss(outputs, inputs), next_byte_loss(outputs, inputs))


def test_build_gets_the_context_and_the_settings_by_name(write: Write) -> None:
    spec = write(
        "from torch import nn\n"
        "def build(context, *, first, second):\n"
        "    assert (context, first, second) == (32, [1, 2], 'x')\n"
        "    return nn.Linear(1, 1)\n",
        context=32,
        settings={"second": "x", "first": [1, 2]},
    )
    assert isinstance(build_model(spec, seed=0).module, nn.Linear)


def test_a_class_is_as_good_as_a_function(write: Write) -> None:
    spec = write(
        "from torch import nn\n"
        "class Net(nn.Embedding):\n"
        "    def __init__(self, context):\n"
        "        super().__init__(256, 256)\n",
        function="Net",
    )
    assert type(build_model(spec, seed=0).module).__name__ == "Net"


def test_what_build_draws_depends_on_the_seed_alone(write: Write) -> None:
    spec = write(
        "import random\nimport torch\nfrom torch import nn\n"
        "def build(context):\n"
        "    module = nn.Linear(2, 2)\n"
        "    module.bias.data[0] = random.random()\n"
        "    return module\n"
    )
    first, again = (build_model(spec, seed=4).module for _ in range(2))
    other = build_model(spec, seed=5).module
    assert torch.equal(first.weight, again.weight) and torch.equal(first.bias, again.bias)
    assert not torch.equal(first.weight, other.weight) and first.bias[0] != other.bias[0]


def test_layers_and_loss_of_ones_own(write: Write) -> None:
    text = WITH_MODEL.format(
        loss="return (outputs.sum() - targets.sum()) ** 2 / 7", more="[module[1]], loss"
    )
    model = build_model(write(text), seed=0)
    assert list(model.layers) == [model.module[1]]
    outputs, targets = torch.ones(3, requires_grad=True), torch.ones(2)
    assert model.loss(outputs, targets).item() == pytest.approx(1 / 7)
    assert model.loss(outputs, targets).shape == ()


def test_a_neighbour_can_be_imported_and_hides_no_other_module(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("WIDTH = 5\n", name="neighbour_of_my.py")
    write("raise RuntimeError('not me')\n", name="colorsys.py")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    spec = write(
        "import neighbour_of_my, colorsys\nfrom torch import nn\n"
        "def build(context):\n    return nn.Linear(neighbour_of_my.WIDTH, 1)\n"
    )
    assert build_model(spec, seed=0).module.in_features == 5


def test_dataclasses_and_string_annotations_work(write: Write) -> None:
    spec = write(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "from torch import nn\n"
        "@dataclass\nclass Size:\n    width: int = 3\n"
        "def build(context) -> nn.Module:\n    return nn.Linear(Size().width, 1)\n"
    )
    assert build_model(spec, seed=0).module.in_features == 3


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("import torch\n\n1 / 0\n", 3, "ZeroDivisionError: division by zero"),
        ("def build(context):\n    x = {}\n    return x['key']\n", 3, "KeyError: 'key'"),
        ("def build(context):\n    import sys\n    sys.exit(3)\n", 3, "SystemExit: 3"),
        ("import nothing_like_it\n", 1, "ModuleNotFoundError: No module .*install it beside torch"),
        (
            "def helper():\n    raise OSError(5, 'bad')\ndef build(context):\n    helper()\n",
            2,
            "OSErr",
        ),
        ("import torch\ndef build(context):\n    torch.zeros(2) @ torch.zeros(3)\n", 3, "RuntimeE"),
        ("def build(context):\n  pass\n build = 3\n", 3, "IndentationError: unindent"),
        ("def build(context:\n", 1, "SyntaxError: .*py_compile"),
        ("class Own(Exception):\n  pass\ndef build(context):\n  raise Own('so')\n", 4, "Own: so"),
    ],
)
def test_what_goes_wrong_in_the_file_is_told_with_its_line(
    write: Write, text: str, line: int, told: str
) -> None:
    message = fails(write(text))
    assert re.search(rf"model\.import: \S+/my\.py:{line}: {told}", message), message
    assert "Traceback" not in message and "\n" not in message


def test_a_line_of_a_neighbour_is_told_by_the_line_that_called_it(write: Write) -> None:
    write("def go():\n    raise ValueError('deep')\n", name="deep_neighbour.py")
    message = fails(write("import deep_neighbour\n\ndef build(c):\n    deep_neighbour.go()\n"))
    assert "/my.py:4: ValueError: deep" in message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def biuld(context): ...\n", r"no build in it; .*has: biuld; write .*my\.py:biuld"),
        ("", r"no build in it; .*none so far"),
        ("build = 5\n", "build is no function"),
        ("def build(): ...\n", r"my\.py:1: build\(\) is called with \(context\)"),
        ("def build(context, a): ...\n", r"build\(context, a\) .*missing a required argument: 'a'"),
        ("def build(context): ...\n", "build returned NoneType for the module; it returns a torch"),
        ("def build(context): return 3\n", "returned int for the module"),
        (
            WITH_MODEL.format(loss="", more="loss=3").replace("def loss", "def f"),
            "SyntaxError|Inden",
        ),
        (WITH_MODEL.format(loss="pass", more="loss=3"), "returned int for the loss"),
        (WITH_MODEL.format(loss="pass", more="[nn.Linear(1, 1)]"), "layers that are not part of"),
        (
            WITH_MODEL.format(loss="pass", more="").replace("Model(module", "Model(4"),
            "returned int",
        ),
    ],
)
def test_what_is_not_a_model_is_refused(write: Write, text: str, told: str) -> None:
    message = fails(write(text))
    assert re.search(told, message), message


def test_an_unknown_setting_is_refused_by_name(write: Write) -> None:
    message = fails(write(PLAIN, settings={"widht": 3}))
    assert "build(context, width=16) is called with (context, widht)" in message
    assert "'widht'" in message


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        ("return outputs.mean(-1)", r"a tensor of shape \(2, 8\)"),
        ("return outputs.mean().item()", "its loss gave float"),
        ("return outputs.mean().detach()", r"shape \(\) that no gradient reaches"),
        ("return None", "its loss gave NoneType"),
    ],
)
def test_a_loss_that_cannot_be_trained_with_is_refused(write: Write, loss: str, told: str) -> None:
    model = build_model(write(WITH_MODEL.format(loss=loss, more="loss=loss")), seed=0)
    inputs = random_bytes(2, 8)
    with pytest.raises(ModelError, match=told):
        model.loss(model.module(inputs), inputs)


def test_a_module_that_does_not_predict_bytes_needs_a_loss_of_its_own(write: Write) -> None:
    spec = write("from torch import nn\ndef build(context):\n    return nn.Embedding(256, 10)\n")
    model, inputs = build_model(spec, seed=0), random_bytes(2, 8)
    told = r"returned a tensor of shape \(2, 8, 10\) for \(2, 8\) bytes; .*\(2, 8, 256\)"
    with pytest.raises(ModelError, match=told):
        model.loss(model.module(inputs), inputs)


def test_an_error_in_torchs_own_layers_is_told_as_the_models(write: Write) -> None:
    spec = write("from torch import nn\n\ndef build(context):\n    return nn.Linear(context, 2)\n")
    told = r"my\.py:3: build: its module, given \(2, 8\) bytes: RuntimeError: mat1 and mat2 must"
    with pytest.raises(ModelError, match=told):
        build_model(spec, seed=0).module(random_bytes(2, 8))


def test_an_error_in_forward_is_told_with_its_line(write: Write) -> None:
    spec = write(
        "from torch import nn\n"
        "class Net(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        return super().forward(x.no_such_thing)\n"
        "def build(context):\n    return Net(1, 1)\n"
    )
    with pytest.raises(ModelError, match=r"my\.py:4: AttributeError: .*no_such_thing"):
        build_model(spec, seed=0).module(random_bytes(2, 8))


def test_an_error_while_training_is_told_with_its_line(write: Write) -> None:
    text = WITH_MODEL.format(loss="x = 0\n    return outputs.sum() / (1 // x)", more="loss=loss")
    model, inputs = build_model(write(text), seed=0), random_bytes(2, 8)
    with pytest.raises(ZeroDivisionError) as caught:
        model.loss(model.module(inputs), inputs)
    told = blame(caught.value)
    assert told is not None
    assert "/my.py:7: ZeroDivisionError" in told.message


def test_an_error_from_elsewhere_is_not_blamed_on_the_file() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        1 / 0  # noqa: B018
    assert blame(caught.value) is None


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"caf\xe9 = 1\n", "SyntaxError: .*utf-8"),
        (b"x = 1\x00\n", "null byte"),
    ],
)
def test_a_file_that_is_no_python_is_refused(write: Write, content: bytes, told: str) -> None:
    with pytest.raises(ModelError, match=told):
        read_source(write(content))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, told in ((tmp_path / "gone.py", "No such file"), (tmp_path, "no ordinary file")):
        spec = OwnSpec.model_validate({"import": f"{tmp_path}/gone.py:build"}).at(path)
        with pytest.raises(ModelError, match=f"{path}: {told}"):
            read_source(spec)


def test_reading_runs_nothing_and_recorded_is_what_runs(write: Write) -> None:
    spec, before = write("raise SystemExit('ran')\n"), set(sys.modules)
    source = read_source(spec)
    assert source.file.sha256 == hashlib.sha256(b"raise SystemExit('ran')\n").hexdigest()
    assert source.module_name.startswith(MODULE_NAME)
    assert set(sys.modules) == before


def test_the_file_of_a_model_is_filled_in_not_taken(write: Write) -> None:
    text = WITH_MODEL.format(loss="pass", more="file='elsewhere'")
    model = build_model(write(text), seed=0)
    assert isinstance(model, Model)
    assert model.file is not None and model.file.path.endswith("my.py")
