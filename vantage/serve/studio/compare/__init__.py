"""The Compare page: comparisons started, watched and stopped, and their reports."""
