"""What a job file may say about its model: each kind has keys of its own and no others.

Owns keys, defaults and rules. What the kinds compute is `jobs.models`; every kind says with
`context` how many bytes a sample has.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_serializer, model_validator

from cluster.yamlfile import StrictModel
from jobs.errors import JobSpecError

MOST = 2**31 - 1
"""What a count may be at most: more is a slip, and overflows what counts with 32 bits."""
PositiveInt = Annotated[int, Field(ge=1, le=MOST)]
NotNegativeInt = Annotated[int, Field(ge=0, le=MOST)]
PositiveFloat = Annotated[float, Field(gt=0, le=MOST)]
NotNegativeFloat = Annotated[float, Field(ge=0, le=MOST)]
Context = Annotated[int, Field(ge=2)]

FLOAT_BYTES = 4
DEFAULT_KIND = "byte-gpt"
OWN = "import"


class ByteGptSpec(StrictModel):
    """A GPT that reads and predicts bytes."""

    kind: Literal["byte-gpt"] = "byte-gpt"
    """Which model."""
    layers: PositiveInt = 4
    """Transformer blocks, one after the other."""
    width: PositiveInt = 128
    """Numbers that stand for one byte inside the model."""
    heads: PositiveInt = 4
    """Attention heads of each block; they share the width equally."""
    context: Context = 64
    """Bytes the model sees at once."""

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> Self:
        if self.width % self.heads:
            most = min(self.heads, self.width)
            fewer = range(most, max(0, most - 1000), -1)  # numbers of any size end soon
            nearest = next((heads for heads in fewer if self.width % heads == 0), 1)
            raise JobSpecError(
                f"width {self.width} with {self.heads} heads",
                rule="the heads share the width equally",
                fix=f"write heads: {nearest}",
            )
        return self


class MiniMlpSpec(StrictModel):
    """Three linear layers that predict each byte from the one before it."""

    kind: Literal["mini-mlp"] = "mini-mlp"
    """Which model."""
    width: PositiveInt = 64
    """Numbers that stand for one byte inside the model."""
    context: Context = 64
    """Bytes in a row that are predicted at once, each from the one before it."""


class DeepMlpSpec(StrictModel):
    """Many small layers, so many small gradients: what bucketing is for."""

    kind: Literal["deep-mlp"] = "deep-mlp"
    """Which model."""
    layers: PositiveInt = 24
    """Residual layers, one after the other."""
    width: PositiveInt = 128
    """Numbers that stand for one byte inside the model."""
    context: Context = 64
    """Bytes in a row that are predicted at once, each from the one before it."""


class ResnetSpec(StrictModel):
    """Convolutions with batch norms, which keep buffers; reads a window of text as a picture."""

    kind: Literal["resnet"] = "resnet"
    """Which model."""
    layers: PositiveInt = 3
    """Residual blocks of two convolutions, one after the other."""
    width: PositiveInt = 16
    """Channels of each convolution."""
    side: Annotated[int, Field(ge=2, le=1024)] = 8
    """Bytes in a row of the picture, and rows; a window is as long as both make it."""

    @property
    def context(self) -> int:
        """Bytes of a picture."""
        return self.side**2


class ExpertsSpec(StrictModel):
    """A mixture of experts: each micro-batch uses one of them, so the others get no gradient."""

    kind: Literal["experts"] = "experts"
    """Which model."""
    experts: Annotated[int, Field(ge=2, le=1024)] = 4
    """Branches, of which a micro-batch takes one, chosen by its bytes."""
    width: PositiveInt = 64
    """Numbers that stand for one byte inside the model."""
    context: Context = 64
    """Bytes in a row that are predicted at once, each from the one before it."""


class PacedSpec(StrictModel):
    """Layers that take the time and have the gradients they are told to; nothing is computed."""

    kind: Literal["paced"] = "paced"
    """Which model."""
    layers: PositiveInt = 10
    """Layers, one after the other."""
    layer_bytes: PositiveInt = 400_000
    """Bytes of gradients that each layer has."""
    layer_forward_ms: NotNegativeFloat = 10.0
    """How long each layer's forward takes, by sleeping."""
    layer_backward_ms: NotNegativeFloat = 20.0
    """How long each layer's backward takes, by sleeping."""
    scale: PositiveInt = 1
    """How many bytes of the system that is modelled one byte stands for; latency never scales."""

    @property
    def context(self) -> int:
        """Bytes of a sample, whose mean is all that the model looks at."""
        return 64

    @field_validator("layer_bytes")
    @classmethod
    def _whole_numbers(cls, num_bytes: int) -> int:
        if num_bytes % FLOAT_BYTES:
            raise JobSpecError(
                f"{num_bytes}",
                rule=f"gradients are float32, of {FLOAT_BYTES} bytes each",
                fix=f"write {max(1, round(num_bytes / FLOAT_BYTES)) * FLOAT_BYTES}",
            )
        return num_bytes


class OwnSpec(StrictModel):
    """A model of one's own: what a function in a Python file returns (jobs/models/own.py)."""

    kind: Literal["import"] = "import"
    """Which model; may be left out where `import` is there."""
    import_: str = Field(alias="import")
    """`my.py:build`, a file and the name of a function in it.

    A relative path counts from the job file's folder; given with SET, from the folder in which the
    command is given.
    """
    context: Context = 64
    """Bytes in a row that the model is given at once, and predicts the next ones of."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """What the function is called with besides `context`: its arguments by name."""

    @field_validator("import_")
    @classmethod
    def _file_and_function(cls, text: str) -> str:
        path, _, function = text.rpartition(":")
        if Path(path).suffix != ".py" or not function.isidentifier():
            stem = (text if ":" not in text else path).removesuffix(".py") or "my"
            raise JobSpecError(
                f'"{text}"',
                rule="is a Python file, a colon, and the name of a function in it",
                fix=f'write "{stem}.py:{function if function.isidentifier() else "build"}"',
            )
        return text

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.import_.rpartition(":")[0])

    @property
    def function(self) -> str:
        """The function's name."""
        return self.import_.rpartition(":")[2]

    def at(self, path: Path) -> "OwnSpec":
        """The same function of the file at `path`."""
        return self.model_copy(update={"import_": f"{path}:{self.function}"})

    @model_serializer(mode="wrap")
    def _as_written(self, serialize: Callable[["OwnSpec"], dict[str, Any]]) -> dict[str, Any]:
        # as the key is written in a job file, whatever the field is called here
        return {key.removesuffix("_"): value for key, value in serialize(self).items()}


def kind_of(model: Any) -> str:
    """The kind that a document, or a model that was read, is of; the keys do the rest."""
    if not isinstance(model, dict):
        return str(getattr(model, "kind", DEFAULT_KIND))
    return str(model.get("kind", OWN if OWN in model else DEFAULT_KIND))


ModelSpec = Annotated[
    Annotated[ByteGptSpec, Tag("byte-gpt")]
    | Annotated[MiniMlpSpec, Tag("mini-mlp")]
    | Annotated[DeepMlpSpec, Tag("deep-mlp")]
    | Annotated[ResnetSpec, Tag("resnet")]
    | Annotated[ExpertsSpec, Tag("experts")]
    | Annotated[PacedSpec, Tag("paced")]
    | Annotated[OwnSpec, Tag("import")],
    Discriminator(kind_of),
]
