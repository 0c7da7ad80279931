"""The Lens page: what a model would write after each layer, and what becomes of it without a part or with another's."""
