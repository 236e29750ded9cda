"""The key under which a service is known inside the operator."""

from typing import NamedTuple


class Key(NamedTuple):
    """Namespace and name of an InferenceService."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
