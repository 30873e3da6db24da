"""The diagnosis of an iteration: rules, each with a verdict, the number behind it, the rows behind that, and advice."""

from pipeline.health.diagnosis import RULES, as_json, diagnose, overall_level
from pipeline.health.evidence import Evidence
from pipeline.health.finding import Finding, Level, Rows

__all__ = ["RULES", "Evidence", "Finding", "Level", "Rows", "as_json", "diagnose", "overall_level"]
