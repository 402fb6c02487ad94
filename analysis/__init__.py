"""What it means: the records of a results folder as tidy tables, statistics, tables to read and answers to compare.

from analysis import load_runs, load_requests, load_rounds, load_acceptance, load_histogram

runs = load_runs("results/runs")
"""

from analysis.acceptance import load_acceptance, load_histogram
from analysis.load import load_requests, load_rounds, load_runs

__all__ = ["load_acceptance", "load_histogram", "load_requests", "load_rounds", "load_runs"]
