"""Kinds of command-line values that several commands take."""

from __future__ import annotations

import argparse


class UsageError(Exception):
    """What the user gave can't be used; the message says why. Other errors are faults of ours."""


def positive(text: str) -> int:
    """Read a number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value
