"""`data/report.html`: one page for eyes, self-contained."""

from pipeline.report.page import ReportInput, render_report

__all__ = ["ReportInput", "render_report"]
