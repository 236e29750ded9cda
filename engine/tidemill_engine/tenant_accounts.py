"""Tokens per tenant for the metrics: the largest tenants by name, all others together.

Pure: names and counts. However many tenants there are, the names that are shown are bounded, and so is what
is remembered. A tenant that outgrows the least of those shown takes its place: what the other had moves to
`other`, and its own count begins then, so that every series only grows.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

OTHER = "other"
DEFAULT = "default"
MAX_SHOWN = 50
MAX_CANDIDATES = 500


@dataclass(kw_only=True)
class TenantUsage:
    """What one tenant has used."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Return the tokens by which tenants are ranked."""
        return self.prompt_tokens + self.output_tokens

    def add(self, usage: TenantUsage) -> None:
        """Add to what has been used."""
        self.requests += usage.requests
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.output_tokens += usage.output_tokens


class TenantAccounts:
    """One account for each tenant that is shown, and one for the rest."""

    def __init__(self, max_shown: int = MAX_SHOWN) -> None:
        self._max_shown = max_shown
        self._shown: dict[str, TenantUsage] = {}
        self._others = TenantUsage()
        self._candidates: OrderedDict[str, int] = OrderedDict()

    def add(self, tenant: str, usage: TenantUsage) -> None:
        """Count what a tenant's sequence has used; who bears the name of a label is counted under it."""
        if tenant == OTHER:
            self._others.add(usage)
            return
        tenant = tenant or DEFAULT
        account = self._shown.get(tenant)
        if account is None and len(self._shown) < self._max_shown:
            account = self._shown[tenant] = TenantUsage()
        if account is None:
            account = self._account_of_unshown(tenant, usage)
        account.add(usage)

    def shown(self) -> dict[str, TenantUsage]:
        """Return the accounts by label: tenants, and `other` where there are more than are shown."""
        has_others = self._others.requests > 0
        return self._shown | ({OTHER: self._others} if has_others else {})

    def _account_of_unshown(self, tenant: str, usage: TenantUsage) -> TenantUsage:
        """Return where a tenant without a label of its own is counted, which may be its new label."""
        total = self._candidates.pop(tenant, 0) + usage.tokens
        least = min(self._shown, key=lambda name: self._shown[name].tokens)
        if total <= self._shown[least].tokens:
            self._candidates[tenant] = total
            if len(self._candidates) > MAX_CANDIDATES:
                self._candidates.popitem(last=False)
            return self._others
        gone = self._shown.pop(least)
        self._others.add(gone)
        self._candidates[least] = gone.tokens
        account = self._shown[tenant] = TenantUsage()
        return account
