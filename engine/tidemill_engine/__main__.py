"""Command line of this package; reads flags and environment and nothing else does."""


def main() -> None:
    """Run the command line."""
    raise SystemExit("not built yet")


if __name__ == "__main__":
    main()
