"""The operator's errors: one base class, told apart by what the reconciler does about them.

Knows names only. Refuses to know conditions, which `conditions.py` makes of them.
"""


class OperatorError(Exception):
    """Base of everything that this package raises on purpose."""


class InvalidSpec(OperatorError):  # noqa: N818 - the name that the architecture gives it
    """A spec that cannot be acted upon until a person changes it; never retried by itself."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class ObstacleError(OperatorError):
    """Something stands in the way that may go away without telling; worth another try."""


class ApiError(OperatorError):
    """An answer of the Kubernetes API that is not a success, or no answer at all (status 0)."""

    def __init__(self, *, status: int, reason: str, message: str, request: str) -> None:
        super().__init__(f"{request}: {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.request = request

    @property
    def is_not_found(self) -> bool:
        """Tell whether the object does not exist."""
        return self.status == 404

    @property
    def is_conflict(self) -> bool:
        """Tell whether someone else was quicker, so that reading again helps."""
        return self.status == 409

    @property
    def is_refusal(self) -> bool:
        """Tell whether the same request will be refused again until something changes."""
        return self.status in {400, 403, 422}
