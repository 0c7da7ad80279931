"""Interventions: reading and replacing what passes through a model, and what is learned by it."""

from vantage.interventions.activations import Activation, activations
from vantage.interventions.edits import Edit
from vantage.interventions.trace import Trace, trace, tracing

__all__ = ["Activation", "Edit", "Trace", "activations", "trace", "tracing"]
