"""The one thing that can go wrong."""


class Failure(Exception):
    """Raised when something did not happen as it should."""
