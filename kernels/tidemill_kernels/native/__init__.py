"""The C++ kernels for a CPU: `cpu` which there are, `build` compiles, `library` loads, `engine` computes.

Needs numpy, not torch; compiling (`python -m tidemill_kernels.native`) needs the standard library only.
`src/` is one library, compiled once per path; a path is a set of instructions that a CPU has or has not.
"""
