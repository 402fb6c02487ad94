"""What it means: the records of a results folder as tidy tables, statistics, tables to read and answers to compare.

from analysis import load_runs, load_requests, load_rounds

runs = load_runs("results/runs")
"""

from analysis.load import load_requests, load_rounds, load_runs

__all__ = ["load_requests", "load_rounds", "load_runs"]
