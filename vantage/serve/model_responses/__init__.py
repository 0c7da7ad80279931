"""OpenAI's Responses API: conversations that the server remembers, with answers as lists of items."""
