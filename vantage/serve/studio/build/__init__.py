"""The Build page: a model from a form, as a spec, as code and as settings."""
