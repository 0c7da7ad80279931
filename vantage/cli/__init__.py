"""The command line: one file per verb, and nothing heavy imported before a verb runs."""
