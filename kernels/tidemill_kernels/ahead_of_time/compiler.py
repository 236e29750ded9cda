"""Compiling one variant for one target without its hardware."""

from __future__ import annotations

import importlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tidemill_kernels.ahead_of_time.resources import Resources, parse_resources
from tidemill_kernels.ahead_of_time.variant import Variant

_WARP_SIZE = 32
_ALIGNED = [["tt.divisibility", 16]]


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """One variant for one target: what it takes, and what is beyond its bounds."""

    variant: Variant
    capability: int
    resources: Resources
    complaints: list[str]


def compile_variant(variant: Variant, capability: int) -> Compiled:
    """Compile and measure one variant.

    capability: 80 for sm_80, and so on. Pointers and strides are taken as multiples of 16, as torch allocates
    them, but those of which the kernel wants to know nothing. Raises RuntimeError where Triton interprets,
    which compiles nothing.
    """
    if os.environ.get("TRITON_INTERPRET", "0") == "1":
        raise RuntimeError("kernels can't be compiled while TRITON_INTERPRET=1")
    kernel = _find(variant.kernel)
    signature = {
        **{name: f"*{dtype}" for name, dtype in variant.pointers.items()},
        **variant.numbers,
        **dict.fromkeys(variant.constants, "constexpr"),
    }
    ordered = {name: signature[name] for name in kernel.arg_names}
    aligned = {
        (index,): _ALIGNED
        for index, name in enumerate(kernel.arg_names)
        if name in variant.pointers or (name.startswith("stride_") and name not in kernel.do_not_specialize)
    }
    source = ASTSource(fn=kernel, signature=ordered, constexprs=dict(variant.constants), attrs=aligned)
    target = GPUTarget("cuda", capability, _WARP_SIZE)
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    built = triton.compile(source, target=target, options=options)
    resources = parse_resources(_listing(built.asm["cubin"]), built.metadata.shared)
    complaints = variant.bounds.broken_by(resources, capability)
    return Compiled(variant=variant, capability=capability, resources=resources, complaints=complaints)


def _find(kernel: str) -> Any:
    folder, _, function = kernel.partition(":")
    return getattr(importlib.import_module(f"tidemill_kernels.{folder}.triton_kernel"), function)


def _listing(cubin: bytes) -> str:
    """Ask the disassembler that comes with Triton what a binary takes."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        ran = subprocess.run(
            [tool, "--dump-resource-usage", file.name], check=True, capture_output=True, text=True
        )
    return ran.stdout
