"""Which revision serves a session while a new one is tried.

Pure. Knows the canary's share and a session's name, or the request's where it has none. Refuses to know
replicas.
"""

import hashlib

from tidemill_gateway.service_spec import Revisions

WHOLE_PERCENT = 100


def revision_for(revisions: Revisions, session: str) -> str | None:
    """Give the revision that a session belongs to, or None where every replica will do.

    The hash depends on the new revision, so that it is not always the same people who try what is new. A
    larger share moves sessions to the new revision and none back.
    """
    percent, current, update = revisions.canary_percent, revisions.current, revisions.update
    if percent is None or not current or not update or current == update:
        return None
    if update == revisions.failed:
        return current
    if percent >= WHOLE_PERCENT:
        return None
    digest = hashlib.blake2b(session.encode(errors="surrogatepass"), key=update.encode()[:64], digest_size=8)
    return update if int.from_bytes(digest.digest()) % WHOLE_PERCENT < percent else current
