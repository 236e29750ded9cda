"""What an API client raises, whatever went wrong."""


class ApiError(Exception):
    """The API server refused, could not be reached, or answered what is no answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {reason}" if status else reason)
        self.status = status
