"""Compile kernels ahead of time: `python -m tidemill_kernels.native [PATH ...]`, into the package itself."""

from __future__ import annotations

import argparse
import platform

from tidemill_kernels.native.build import PREBUILT, build_library, library_name
from tidemill_kernels.native.cpu import PATHS


def main() -> None:
    """Build every path that this kind of machine could take, or those named."""
    names = [path.name for path in PATHS]
    parser = argparse.ArgumentParser(prog="python -m tidemill_kernels.native", description=main.__doc__)
    parser.add_argument(
        "paths", nargs="*", choices=[*names, []], help="default: all for this kind of machine"
    )
    wanted = parser.parse_args().paths
    for path in PATHS:
        if path.name in wanted or (not wanted and platform.machine() in path.machines):
            print(build_library(path, PREBUILT / library_name(path)))


if __name__ == "__main__":
    main()
