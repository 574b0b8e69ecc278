"""What a rank says of itself before its first step: where it runs, what it trains, on what data.

Owns the keys of the records' header. Measures nothing.
"""

import os
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ddp.calibrate import Calibration
from ddp.plan import ReductionPlan
from jobs.argument import RankArgument
from jobs.data import Windows
from jobs.devices import RankDevice
from jobs.modelfile import ModelFile
from jobs.text import Text
from jobs.wrapper import Wrapper


@dataclass(frozen=True)
class OwnFiles:
    """Where code of the user's own came from; None where it is ours."""

    model: ModelFile | None
    algorithm: ModelFile | None
    hook: ModelFile | None

    def to_json(self) -> dict[str, Any]:
        return {f"{name}_file": file for name, file in asdict(self).items()}


def rank_header(
    told: RankArgument,
    ddp: Wrapper,
    files: OwnFiles,
    text: Text,
    windows: Windows,
    calibration: Calibration | None,
    device: RankDevice,
) -> dict[str, Any]:
    """The first line of the rank's records, without the clocks that its writer adds."""
    parameters = [parameter for parameter in ddp.parameters() if parameter.requires_grad]
    return {
        "run_id": told.run_id,
        "rank": told.rank,
        "local_rank": told.local_rank,
        "node": told.node,
        "node_name": told.node_name,
        "world_size": told.world_size,
        "nnodes": told.nnodes,
        "nproc_per_node": told.nproc_per_node,
        "pid": os.getpid(),
        "interface": told.interface,
        "shares_memory_with": list(ddp.shares_memory_with),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **device.to_json(),
        "data": {
            "source": text.source,
            "bytes": len(text.content),
            "windows": len(windows),
            "sha256": text.sha256,
        },
        **files.to_json(),
        "model_parameters": sum(parameter.numel() for parameter in parameters),
        "gradient_bytes": sum(parameter.nbytes for parameter in parameters),
        "initial_params_sha256": ddp.verify_parameters(),
        **plan_keys(ddp.plan),
        "calibration": asdict(calibration) if calibration else None,
        "probe": told.probe if told.rank == 0 else None,
    }


def plan_keys(plan: ReductionPlan | None) -> dict[str, Any]:
    """The plan as records have it; null while it is not known."""
    return {
        "plan": plan.to_json() if plan else None,
        "plan_sha256": plan.sha256 if plan else None,
    }
