"""The Studies page: studies and exercises, run here."""
