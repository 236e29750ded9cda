"""How many examples hypothesis tries: all of them in `make test`, a fifth in `make check`.

`make check` runs pytest with `--hypothesis-profile=fast`. No example has a deadline: tests assert no times.
"""

from __future__ import annotations

from hypothesis import settings

_USUAL = 100
_FAST = 20


def register_profiles() -> None:
    """Define what `--hypothesis-profile=fast` means, and what holds without it."""
    settings.register_profile("usual", max_examples=_USUAL, deadline=None)
    settings.register_profile("fast", max_examples=_FAST, deadline=None)
    settings.load_profile("usual")


def examples(count: int) -> settings:
    """Return settings for so many examples, or for as many fewer as the profile has fewer than usual."""
    profile = settings.default
    assert profile is not None
    return settings(max_examples=-(-count * profile.max_examples // _USUAL))
