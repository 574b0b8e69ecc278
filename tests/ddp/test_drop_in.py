"""Arguments of torch's class: what scripts pass works, or is refused alike on all ranks."""

import inspect
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from ddp.drop_in import TorchArguments, buffers_wanted, why_refused
from ddp.errors import UsageError
from ddp.parallel import DistributedDataParallel
from tests.ddp.samples import integers, linear, message, the_one_text

OURS = set(inspect.signature(DistributedDataParallel.__init__).parameters)
DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(TorchDDP.__init__).parameters.items()
    if name not in ("self", "module")
}


CPU = torch.device("cpu")


def test_every_argument_of_torchs_class_is_known() -> None:
    """A new torch with a new argument shows here."""
    assert set(DEFAULTS) <= OURS | set(TorchArguments.__annotations__)
    torchs = {name: DEFAULTS[name] for name in TorchArguments.__annotations__ if name in DEFAULTS}
    places = [DEFAULTS[name] for name in ("device_ids", "output_device", "dim")]
    assert why_refused(CPU, *places, torchs) is None


def test_what_scripts_pass_works_in_place_and_by_name(ranks: Any) -> None:
    def body(rank: int) -> list[Any]:
        found = []
        for arguments, named in (
            ((None, None, 0), {}),
            (([],), {"broadcast_buffers": True, "bucket_cap_mb": None}),
            ((), {name: value for name, value in DEFAULTS.items() if name != "process_group"}),
            ((), {"device_ids": None, "find_unused_parameters": True, "bucket_cap_mb": 25}),
            ((), {"gradient_as_bucket_view": True, "static_graph": True, "process_group": None}),
            ((), {"process_group": torch.distributed.group.WORLD, "forward_sync_buffers": False}),
        ):
            layer = linear(rank)
            wrapped = DistributedDataParallel(layer, *arguments, timeout_s=5, **named)
            wrapped(integers(rank, 4, 3)).sum().backward()
            assert layer.weight.grad is not None
            found.append(layer.weight.grad[0].tolist())
            wrapped.close()
        return found

    mean = torch.stack([integers(rank, 4, 3).sum(0) for rank in range(2)]).mean(0).tolist()
    assert ranks.run(2, body) == [[mean] * 6] * 2


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"device_ids": [0]}, "device_ids=[0], output_device=None for a module on cpu"),
    ({"output_device": 0}, "output_device=0 for a module on cpu"),
    ({"dim": 1}, "dim=1: inputs are not scattered"),
    ({"init_sync": False}, "init_sync=False: only True is kept; parameters and buffers always"),
    ({"check_reduction": True}, "check_reduction=True: only False is kept"),
    ({"mixed_precision": object()}, "mixed_precision=<object"),
    ({"device_mesh": 3}, "device_mesh=3: only None is kept; give process_group=device_mesh."),
    ({"delay_all_reduce_named_params": []}, "delay_all_reduce_named_params=[]: only None"),
    ({"skip_all_reduce_unused_params": True}, "skip_all_reduce_unused_params=True: only False"),
)


@pytest.mark.parametrize(("arguments", "told"), REFUSED)
def test_what_cannot_be_kept_is_refused_with_what_to_do(
    arguments: dict[str, Any], told: str
) -> None:
    places = [
        arguments.pop(name, default)
        for name, default in (("device_ids", None), ("output_device", None), ("dim", 0))
    ]
    assert told in str(why_refused(CPU, *places, arguments))


def test_a_gpu_may_be_named_where_the_module_is() -> None:
    gpu = torch.device("cuda", 1)
    for ids, output in (([1], None), ([gpu], 1), (["cuda:1"], gpu), (None, None), ([], None)):
        assert why_refused(gpu, ids, output, 0, {}) is None
    for ids, output in (([0], None), ([1, 1], None), ([1], 0), (1, "cuda"), (["?"], None)):
        assert "for a module on cuda:1: " in str(why_refused(gpu, ids, output, 0, {}))


def test_all_ranks_refuse_with_one_text(ranks: Any) -> None:
    """Also where each names a device of its own, as scripts for GPUs do."""

    def body(rank: int) -> list[str]:
        return [
            message(lambda: DistributedDataParallel(linear(rank), [rank], timeout_s=5)),
            message(
                lambda: DistributedDataParallel(linear(rank), init_sync=rank == 0, timeout_s=5)
            ),
        ]

    devices, sync = (the_one_text(each) for each in zip(*ranks.run(2, body), strict=True))
    assert devices.startswith("UsageError: rank 0: device_ids=[0], output_device=None for a module")
    assert sync.startswith("UsageError: rank 1: init_sync=False: only True is kept")


def test_an_argument_that_nobody_has_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"argument 'algoritm'; did you mean 'algorithm'\?"):
        DistributedDataParallel(nn.Linear(1, 1), algoritm="ring")  # type: ignore[call-arg]


def test_two_names_of_one_thing_may_not_differ() -> None:
    assert [buffers_wanted(given, {}) for given in (None, True, False)] == [True, True, False]
    assert buffers_wanted(None, {"forward_sync_buffers": False}) is False
    assert buffers_wanted(True, {"forward_sync_buffers": True}) is True
    with pytest.raises(UsageError, match="broadcast_buffers=True with forward_sync_buffers=False"):
        buffers_wanted(True, {"forward_sync_buffers": False})
