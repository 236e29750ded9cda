"""Compiling every Triton kernel for GPUs that are not at hand, and what each needs of one."""

from __future__ import annotations

from tidemill_kernels.ahead_of_time.resources import Bounds, Resources, parse_resources

__all__ = ["Bounds", "Resources", "parse_resources"]
