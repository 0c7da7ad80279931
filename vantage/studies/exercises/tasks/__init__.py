"""One file for each exercise."""
