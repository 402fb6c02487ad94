"""What is asked: suites of prompts, their loaders, and their rendering to token ids.

workload = load("smoke")
ids = [render(tokenizer, prompt) for prompt in workload.prompts]
"""

from workloads.base import Message, Origin, Prompt, Workload
from workloads.rendering import render
from workloads.suite import definition
from workloads.suites import load, names, suite

__all__ = ["Message", "Origin", "Prompt", "Workload", "definition", "load", "names", "render", "suite"]
