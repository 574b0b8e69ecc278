"""SHA-256 of tensors with their names: whether two models are the same to the last byte."""

import ctypes
import hashlib
from collections.abc import Iterable

from torch import Tensor
from torch.nn import Module


def module_sha256(module: Module, *, buffers: bool) -> str:
    """As `sha256_of`, of all parameters and perhaps of the buffers."""
    named: list[tuple[str, Tensor]] = list(module.named_parameters())
    return sha256_of([*named, *(module.named_buffers() if buffers else ())])


def sha256_of(named: Iterable[tuple[str, Tensor]]) -> str:
    """In hexadecimal: of names, shapes, dtypes and bytes, in the order given."""
    digest = hashlib.sha256()
    for name, tensor in named:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        flat = tensor.detach().cpu().contiguous()
        memory = (ctypes.c_ubyte * flat.nbytes).from_address(flat.data_ptr())  # without numpy
        digest.update(memory)
    return digest.hexdigest()
