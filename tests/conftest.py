"""Settings that every test shares."""

from hypothesis import settings

# A deadline for each example would be a timed test, and this suite has none. The examples are drawn anew
# from a fixed seed, so that a run can be repeated.
settings.register_profile("vantage", deadline=None, derandomize=True)
settings.load_profile("vantage")
