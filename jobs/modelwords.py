"""What people are told about a job's model and its computing, from the job as run.json keeps it.

Plain data in, words and numbers out: also for runs of long ago, so nothing is checked here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from jobs.report.text import count, megabytes

NAMES = {
    "byte-gpt": "byte-GPT",
    "mini-mlp": "mini-MLP",
    "deep-mlp": "deep MLP",
    "resnet": "ResNet with batch norms",
    "experts": "mixture of experts",
}
MINI_MLP_LAYERS = 3


def model_words(model: Mapping[str, Any]) -> str:
    """Such as `byte-GPT, 4 layers of width 128`."""
    kind = model["kind"]
    if kind == "import":
        path, _, function = model["import"].rpartition(":")
        return f"{function} of {Path(path).name}"
    if kind == "experts":
        return f"{NAMES[kind]}, 1 of {model['experts']} in use, of width {model['width']}"
    layers = count(model.get("layers", MINI_MLP_LAYERS), "layer")
    if kind == "paced":
        return f"paced compute, {layers} of {megabytes(model['layer_bytes'])} of gradients"
    return f"{NAMES.get(kind, kind)}, {layers} of width {model['width']}"


def sleeps_only(job: Mapping[str, Any]) -> bool:
    """Whether its model computes nothing, and only takes the time that it is told to."""
    return bool(job["model"]["kind"] == "paced")


def micro_step_ms(job: Mapping[str, Any]) -> float | None:
    """How long a micro-step computes at least; None: as long as it takes."""
    model = job["model"]
    if sleeps_only(job):
        each = model["layer_forward_ms"] + model["layer_backward_ms"]
        return float(model["layers"] * each)
    if not job["pace"]:
        return None
    return float(job["pace"]["forward_ms"] + job["pace"]["backward_ms"])


def num_reductions(job: Mapping[str, Any]) -> int:
    """How often a step reduces its gradients: once, or after every micro-step."""
    return 1 if job["ddp"].get("no_sync", True) else int(job["train"]["accumulate"])


def compute_kind(job: Mapping[str, Any]) -> Literal["paced", "real"]:
    return "real" if micro_step_ms(job) is None else "paced"


def scale_words(job: Mapping[str, Any]) -> str | None:
    """What a byte stands for, where it does not stand for itself."""
    scale = job["model"].get("scale", 1)
    return None if scale == 1 else f"1 byte stands for {scale:,}; latency is not scaled"
