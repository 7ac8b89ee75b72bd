"""A stand-in for an accelerator, in Python: it refuses to mix devices, and counts what the host reads.

Importing this registers the device ``sim`` with torch, for the whole process and for good. So only what runs
in a process of its own imports it: the files ``tests/standin/on_*.py``, which tests/test_standin_device.py
starts. A tensor on ``sim`` wraps one on the CPU, which computes; so results are the CPU's, bit for bit.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.accelerators import Accelerator
from lightning.fabric.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map_only

backend_registration._setup_privateuseone_for_python_backend("sim")

SIM = torch.device("sim:0")
_HERE = Path(__file__)
_places: Counter[str] = Counter()
_TAGS = torch.Tag
# CUDA takes indices that lie on the host, and copies them.
_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
# So do these with a number in a tensor of the host, as all elementwise calls do.
_TAKE_SCALARS = (*_INDEXING, "aten::fill_", "aten::masked_fill", "aten::masked_fill_")


class SimAccelerator(Accelerator):
    """What Lightning asks of a device; there is nothing to set up."""

    def setup_device(self, device: torch.device) -> None:
        assert device == SIM

    def teardown(self) -> None:
        pass

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [SIM]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return "sim"


def fabric_on_sim(config: Any, devices: Any) -> Fabric:
    """Make the Fabric of a run with ``accelerator: sim``, for which Lightning would take the CPU."""
    assert config.accelerator == "sim"
    where: Any = SingleDeviceStrategy(device=SIM, accelerator=SimAccelerator())
    return Fabric(strategy=where, precision=config.precision, loggers=[])


@contextmanager
def host_reads() -> Iterator[Counter[str]]:
    """Count how often the host waits for a number of the device within the block, by places in the code."""
    before = _places.copy()
    found: Counter[str] = Counter()
    try:
        yield found
    finally:
        found.update(_places - before)


def _read() -> None:
    """Note that the host waits, and the innermost line outside torch and this file that lets it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        "torch" in frame.f_code.co_filename or frame.f_code.co_filename == __file__
    ):
        frame = frame.f_back
    file = Path(frame.f_code.co_filename)
    _places[f"{file.parent.name}/{file.name}:{frame.f_lineno} {frame.f_code.co_name}"] += 1


class Sim(Tensor):
    """A tensor on the device: a wrapper without memory around one on the CPU, ``raw``."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> Sim:
        made: Sim = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=SIM,
        )
        made.raw = raw
        return made

    def tolist(self) -> Any:
        _read()
        return self.raw.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("can't convert sim:0 device type tensor to numpy. Use Tensor.cpu() first.")
        return self.detach().cpu().numpy()

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy()

    # What snapshots look at: memory that tensors share.
    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def untyped_storage(self) -> Any:
        return self.raw.untyped_storage()

    def set_(self, storage: Any, offset: int, shape: Any, strides: Any) -> Sim:
        return Sim(torch.empty(0, dtype=self.dtype).set_(storage, offset, shape, strides))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Go into a file as from a GPU whose file is read with ``map_location="cpu"``."""
        _read()
        return self.raw.detach().__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Sim({self.raw})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [
            value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor | torch.Generator)
        ]
        _refuse(func, args, given)
        leaves = (
            func is torch.ops.aten._to_copy.default
            and torch.device(kwargs.get("device") or SIM).type == "cpu"
        )
        if leaves or _waits(func, args):
            _read()
        inner = tree_map_only(Sim, lambda value: value.raw, (args, kwargs))
        if leaves:
            return func(*inner[0], **inner[1])
        if kwargs.get("device") is not None:
            inner[1]["device"] = "cpu"
        # What is written in place is returned as it came.
        same = {id(value.raw) if isinstance(value, Sim) else id(value): value for value in given}
        result = func(*inner[0], **inner[1])
        if any(isinstance(value, Sim) and value.raw.shape != value.shape for value in given):
            raise NotImplementedError(f"a wrapper has one size, and {func} gives its tensor another")
        return tree_map_only(Tensor, lambda raw: same[id(raw)] if id(raw) in same else Sim(raw), result)


def _refuse(func: Any, args: Any, given: list[Any]) -> None:
    """Raise what CUDA raises where a call mixes devices."""
    name = func._schema.name
    if any(isinstance(value, torch.Generator) and value.device.type == "cpu" for value in given):
        raise RuntimeError(f"Expected a 'sim' device type for generator but found 'cpu' in {name}")
    if name in ("aten::copy_", "aten::_to_copy"):
        return
    if isinstance(args[0], Sim) and name in _INDEXING:
        indices = {id(index) for index in args[1]}
        given = [value for value in given if id(value) not in indices]
    plain = [value for value in given if not isinstance(value, Sim)]
    scalars = _TAGS.pointwise in func.tags or name in _TAKE_SCALARS
    if any(value.dim() > 0 or not scalars for value in plain):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found sim:0 and cpu in {name}"
        )


def _waits(func: Any, args: Any) -> bool:
    """Tell whether a call needs a number of the device on the host."""
    if func is torch.ops.aten.copy_.default:
        return isinstance(args[1], Sim) and not isinstance(args[0], Sim)
    if _TAGS.data_dependent_output in func.tags:
        return True
    if func._schema.name in _INDEXING:
        masks = (index for index in args[1] if index is not None)
        return any(isinstance(index, Sim) and index.dtype in (torch.bool, torch.uint8) for index in masks)
    return _TAGS.dynamic_output_shape in func.tags


_library = torch.library.Library("aten", "IMPL")


def _make(packet: str, overload: str) -> None:
    """Let the device make tensors by a call that takes none, which all other makers start from."""
    on_cpu = getattr(getattr(torch.ops.aten, packet), overload)

    def made(*args: Any, **kwargs: Any) -> Sim:
        kwargs.pop("pin_memory", None)
        return Sim(on_cpu(*args, **{**kwargs, "device": "cpu"}))

    _library.impl(f"{packet}.{overload}" if overload != "default" else packet, made, "PrivateUse1")


def _scalar(value: Sim) -> Any:
    _read()
    return value.raw.item()


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy from the device to the host, or the other way."""
    if isinstance(source, Sim) and not isinstance(target, Sim):
        _read()
    values = source.raw if isinstance(source, Sim) else source
    (target.raw if isinstance(target, Sim) else target).copy_(values)
    return target


for _packet, _overload in (
    ("empty", "memory_format"),
    ("empty_strided", "default"),
    *(("arange", overload) for overload in ("default", "start", "start_step")),
    *(("eye", overload) for overload in ("default", "m")),
):
    _make(_packet, _overload)
_library.impl("_local_scalar_dense", _scalar, "PrivateUse1")
_library.impl("_copy_from", _copy_from, "PrivateUse1")
_library.impl("_copy_from_and_resize", _copy_from, "PrivateUse1")
