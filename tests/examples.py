"""How many examples hypothesis tries: all of them in `make test`, a fifth in `make check`.

`make check` runs pytest with `--hypothesis-profile=fast`.
"""

from __future__ import annotations

from hypothesis import settings

_USUAL = 100
_FAST = 20


def register_fast_profile() -> None:
    """Define what `--hypothesis-profile=fast` means."""
    settings.register_profile("fast", max_examples=_FAST)


def examples(count: int) -> settings:
    """Return settings for so many examples, or for as many fewer as the profile has fewer than usual."""
    profile = settings.default
    assert profile is not None
    return settings(max_examples=-(-count * profile.max_examples // _USUAL), deadline=None)
