"""What a run left behind, in one HTML file that opens anywhere."""

from relograph.reports.report import write_report

__all__ = ["write_report"]
