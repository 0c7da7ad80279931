"""The list of conversations, beside the Chat page."""
