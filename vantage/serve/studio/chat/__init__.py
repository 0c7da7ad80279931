"""The Chat page: an answer as it is written, with what the model saw, held and computed."""
