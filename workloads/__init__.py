"""What is asked: suites of prompts, their loaders, and their rendering to token ids.

workload = load("smoke")
ids = [render(tokenizer, prompt) for prompt in workload.prompts]
"""

from workloads.base import Message, Prompt, Workload
from workloads.rendering import render
from workloads.suites import load, names

__all__ = ["Message", "Prompt", "Workload", "load", "names", "render"]
