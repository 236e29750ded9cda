"""The C++ kernels for a CPU: which there are, how they are compiled and loaded. Needs numpy, not torch.

`src/` is one library, compiled once per path; a path is a set of instructions that a CPU has or has not.
"""

from tidemill_kernels.native.build import CompilerMissingError, find_library
from tidemill_kernels.native.cpu import PATHS, KernelPath, best_path, supported_paths
from tidemill_kernels.native.engine import EngineShape, NativeEngine, StepArrays
from tidemill_kernels.native.library import load_library

__all__ = [
    "PATHS",
    "CompilerMissingError",
    "EngineShape",
    "KernelPath",
    "NativeEngine",
    "StepArrays",
    "best_path",
    "find_library",
    "load_library",
    "supported_paths",
]
