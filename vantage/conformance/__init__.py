"""The laws that every model must keep: the matrix over our own parts, and ``check`` for any model."""

from vantage.conformance.check import check
from vantage.conformance.report import CheckRow, Report

__all__ = ["CheckRow", "Report", "check"]
