"""The Positions page: every encoding in figures, a token moved, an encoding swapped."""
