"""Settings that every test shares."""

import os

from hypothesis import settings

# A deadline for each example would be a timed test, and this suite has none. The examples are drawn from a
# fixed seed, so that a run can be repeated. The mutation run needs many short runs rather than a long one.
settings.register_profile("vantage", deadline=None, derandomize=True)
settings.register_profile("mutation", deadline=None, derandomize=True, max_examples=25)
settings.load_profile(os.environ.get("VANTAGE_HYPOTHESIS", "vantage"))
