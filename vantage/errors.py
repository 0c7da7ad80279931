"""Every error a user can cause. Each message says what it got, what it wanted and what to do."""


class VantageError(Exception):
    """The root: catch this to catch everything that Vantage refuses."""


class BadInput(VantageError, ValueError):
    """An argument that cannot be right."""


class Refused(VantageError, ValueError):
    """Parts that do not work together. The message is the reason."""


class CacheError(VantageError):
    """A cache that is full, belongs to another model, or cannot go back that far. The cache is as it was."""


class LengthExceeded(CacheError):
    """A position past the length that was declared for a rule that depends on it."""


class CheckpointError(VantageError, ValueError):
    """A checkpoint that cannot be what it says it is. Nothing of it was loaded, and none of it was run."""
