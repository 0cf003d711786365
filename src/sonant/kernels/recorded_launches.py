"""Records which kernels a piece of code would launch on meta tensors, and in which forms, without launching any.

Triton compiles a kernel anew for each form of its arguments: their types and constants, whether a number is 1 or a
multiple of 16, and whether an address is a multiple of 16. All of that is known of a meta tensor: its address is an
offset in memory that begins at 0, as torch's memory on a GPU begins at a multiple of 512. So the wrappers in
`kernels/triton/` can run on meta tensors with launches only recorded, in the very forms that a GPU will need. No device
takes part, so nothing indexes by values that were never computed, and no process needs a GPU's context to compile them.
Kernels in CUDA C++ have one form for each program; they are recorded in the same way.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from unittest import mock

import triton
from triton import knobs
from triton.compiler import ASTSource, make_backend
from triton.runtime.cache import get_cache_manager
from triton.runtime.jit import JITFunction, create_function_from_signature

from sonant.kernels.cuda.kernel import CudaForm, CudaKernel
from sonant.kernels.gpu import Gpu
from sonant.kernels.triton_setup import build_launcher, target_of

_SLOW = ("_sample", "_ras_sample")  # measured: 4 s of a core, where the next slowest takes 1.4


@dataclass(frozen=True, eq=False)
class KernelForm:
    """One form of a kernel; it can be sent to another process."""

    module: str
    name: str
    key: str  # tells a kernel's forms apart, as in Triton itself
    signature: Mapping[str, Any]
    constants: Mapping[Any, Any]
    attributes: Mapping[Any, Any]
    options: Mapping[str, Any]

    def compile(self, gpu: Gpu) -> str:
        """Compile into Triton's cache on disk, where a launch finds it → its folder there."""
        kernel = getattr(importlib.import_module(self.module), self.name)
        source = ASTSource(kernel, dict(self.signature), dict(self.constants), dict(self.attributes))
        compiled = triton.compile(source, target=target_of(gpu), options=dict(self.options))
        build_launcher(compiled)
        return str(cast(Any, get_cache_manager(compiled.hash)).cache_dir)

    @property
    def is_slow(self) -> bool:
        """Whether compiling takes seconds, where most kernels take some tenths of one."""
        return self.name in _SLOW


AnyForm = KernelForm | CudaForm


class LaunchRecorder:
    """Reports each form once, and again only after `forget`."""

    def __init__(self, gpu: Gpu, found: Callable[[AnyForm], None]) -> None:
        self._found, self._backend = found, make_backend(target_of(gpu))
        self._binders: dict[JITFunction[Any], Callable[..., Any]] = {}
        self._known: dict[tuple[JITFunction[Any], str], KernelForm] = {}
        self._told: set[object] = set()

    def forget(self) -> None:
        self._told.clear()

    def launch(self, kernel: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        """Does what `JITFunction.run` does up to the point where it would compile."""
        options["debug"] = options.get("debug", kernel.debug) or knobs.runtime.debug
        options["instrumentation_mode"] = knobs.compilation.instrumentation_mode
        if kernel not in self._binders:
            self._binders[kernel] = create_function_from_signature(kernel.signature, kernel.params, self._backend)
        bound, form, given = self._binders[kernel](*args, **options)
        key = f"{form}{given}"
        known = self._known.get((kernel, key))
        if known is None:
            parsed, signature, constants, attributes = kernel._pack_args(self._backend, options, bound, form, given)
            known = KernelForm(
                kernel.module, kernel.fn.__name__, key, signature, constants, attributes, dict(vars(parsed))
            )
            self._known[kernel, key] = known
        self.note(known)

    def note(self, form: AnyForm) -> None:
        if form not in self._told:
            self._told.add(form)
            self._found(form)


@contextmanager
def launches_recorded(recorder: LaunchRecorder) -> Iterator[None]:
    """Applies to all threads, so it is for a process that does nothing else."""

    def run(kernel: JITFunction[Any], *args: Any, **options: Any) -> None:
        recorder.launch(kernel, *args, **options)

    def launch(kernel: CudaKernel, *args: Any) -> None:
        recorder.note(kernel.form)

    with mock.patch.object(JITFunction, "run", run), mock.patch.object(CudaKernel, "launch", launch):
        yield
