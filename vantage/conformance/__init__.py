"""The laws that every model must keep: the matrix over our own parts, and ``check`` for any model."""

from vantage.conformance.check import check
from vantage.conformance.report import Report, Row

__all__ = ["Report", "Row", "check"]
