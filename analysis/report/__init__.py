"""The report: a results folder as one HTML file that needs nothing else.

    python -m analysis report RESULTS

It says in words whether the tree is worth it, judges what the literature expects, carries tables, pictures, cautions
and the environment, and shows single rounds where they were dumped. A folder may still be running.
"""

from analysis.report.page import report, write_report

__all__ = ["report", "write_report"]
