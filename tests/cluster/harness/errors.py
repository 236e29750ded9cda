"""The harness' two kinds of failure; knows nothing of what raises them."""


class HarnessError(Exception):
    """Something that should have worked did not: a test run fails on it."""


class UnavailableError(HarnessError):
    """This machine cannot run the test cluster; the message is the reason a skipped test shows."""
