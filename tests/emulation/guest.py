"""Programs for another kind of CPU, run by an emulator: building one of a kernel path, its memory, its calls.

Knows the cross compiler, the emulator and the commands of guest.cpp. Does not know what the calls mean.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cache import cache_root, locked
from harness.errors import HarnessError, UnavailableError
from harness.prerequisites import SystemTool, ensure_tools
from harness.shell import run, step

from tidemill_kernels.native import build

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidemill_kernels.native.cpu import KernelPath

COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"
TOOLS = (
    SystemTool(program=COMPILER, package="g++-aarch64-linux-gnu", purpose="the NEON kernels' tests"),
    SystemTool(program=EMULATOR, package="qemu-user", purpose="running the NEON kernels' tests"),
)
SOURCE = Path(__file__).with_name("guest.cpp")
FLAGS = (*(flag for flag in build.FLAGS if flag not in {"-fPIC", "-shared"}), "-static")
_TAKE, _DROP, _WRITE, _READ, _CALL = range(5)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A path's program, or why this machine has none."""

    program: Path | None = None
    missing: str = ""


@cache
def prepare(path: KernelPath) -> Prepared:
    """Install the tools if need be and build the path's program, once."""
    try:
        ensure_tools(TOOLS)
    except UnavailableError as error:
        return Prepared(missing=str(error))
    digest = hashlib.sha256(f"{build.library_name(path)} {FLAGS}".encode() + SOURCE.read_bytes()).hexdigest()
    program = cache_root() / "emulated" / f"{path.name}-{digest[:16]}"
    with locked(f"emulated-{path.name}"):
        if not program.exists():
            program.parent.mkdir(parents=True, exist_ok=True)
            with step(f"compiling the {path.name} kernels for the emulator"):
                _compile(path, program)
    return Prepared(program=program)


def _compile(path: KernelPath, program: Path) -> None:
    with tempfile.TemporaryDirectory(dir=program.parent) as folder:
        output = Path(folder) / program.name
        run(COMPILER, *FLAGS, *path.flags, f"-I{build.SOURCES}", SOURCE, "-o", output)
        output.replace(program)


class Guest:
    """A running program: its memory, and calls of its functions by number."""

    def __init__(self, program: Path, cpu: str) -> None:
        emulator = shutil.which(EMULATOR)
        if emulator is None:
            raise UnavailableError(f"{EMULATOR} is gone")
        self._process = subprocess.Popen(
            [emulator, "-cpu", cpu, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1 << 16
        )

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.communicate()

    def call(self, function: int, *arguments: int) -> int:
        """Call a function with whole numbers or addresses and return what it returns."""
        return self._ask(_CALL, function, len(arguments), struct.pack(f"<{len(arguments)}q", *arguments))

    def take(self, size: int) -> int:
        """Return the address of that many bytes, which hold anything."""
        return self._ask(_TAKE, size)

    def drop(self, address: int) -> None:
        """Give back what was taken."""
        self._send(_DROP, address)

    def write(self, address: int, data: bytes) -> None:
        """Fill memory."""
        self._send(_WRITE, address, len(data), data)

    def read(self, address: int, size: int) -> bytes:
        """Return what memory holds."""
        self._send(_READ, address, size)
        return self._receive(size)

    @contextmanager
    def memory(self) -> Iterator[Memory]:
        """Offer memory that is given back at the end."""
        memory = Memory(self)
        yield memory
        for address in memory.addresses:
            self.drop(address)

    def _ask(self, command: int, first: int, second: int = 0, data: bytes = b"") -> int:
        self._send(command, first, second, data)
        (answer,) = struct.unpack("<q", self._receive(8))
        return int(answer)

    def _send(self, command: int, first: int, second: int = 0, data: bytes = b"") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(struct.pack("<3q", command, first, second) + data)

    def _receive(self, size: int) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.flush()
        found = self._process.stdout.read(size)
        if len(found) < size:
            raise HarnessError(f"the emulated program ended with status {self._process.wait()}")
        return found


class Memory:
    """Pieces of a guest's memory that go together."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self.addresses: list[int] = []

    def take(self, size: int) -> int:
        """Return the address of that many bytes."""
        self.addresses.append(self._guest.take(max(size, 1)))
        return self.addresses[-1]

    def put(self, data: bytes) -> int:
        """Return the address of a copy."""
        address = self.take(len(data))
        self._guest.write(address, data)
        return address
