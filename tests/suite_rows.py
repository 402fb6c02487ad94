"""Rows made up in the true schema of each published suite: two of each, with what makes suites differ in them."""

from __future__ import annotations

from typing import Any

PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"

ROWS: dict[str, list[dict[str, Any]]] = {
    "gsm8k": [
        {"question": "Ann has 3 {red} hens.\nHow many?", "answer": "She has <<3=3>>3.\n#### 3"},
        {"question": "Bo sells 1,000 pens at $2. What does he get?", "answer": "2 × 1000.\n#### 2,000"},
    ],
    "math500": [
        {
            "problem": "Find $\\frac{1}{2} + \\frac{1}{3}$.",
            "solution": "It is $\\boxed{\\frac{5}{6}}$.",
            "answer": "\\frac{5}{6}",
            "subject": "Prealgebra",
            "level": 2,
            "unique_id": "test/prealgebra/1.json",
        },
        {
            "problem": "How many ways are there to seat {3} people?",
            "solution": "$3! = 6$.",
            "answer": "6",
            "subject": "Counting & Probability",
            "level": 1,
            "unique_id": "test/counting_and_probability/2.json",
        },
    ],
    "aime24": [
        {"id": 60, "problem": "Find $x$.", "solution": "…", "answer": "033", "url": "https://…", "year": "2024"},
        {"id": 61, "problem": "Find $y$ {}.", "solution": "…", "answer": "204", "url": "https://…", "year": "2024"},
    ],
    "aime25": [
        {"problem_idx": 1, "problem": "Find $b$.", "answer": 70, "problem_type": ["Number Theory"]},
        {"problem_idx": 2, "problem": "Find $c$ {}.", "answer": 588, "problem_type": ["Geometry"]},
    ],
    "humaneval": [
        {
            "task_id": "HumanEval/0",
            "prompt": 'def twice(x: int) -> int:\n    """ Double {x}.\n    >>> twice(2)\n    4\n    """\n',
            "canonical_solution": "    return 2 * x\n",
            "test": "def check(candidate):\n    assert candidate(2) == 4\n",
            "entry_point": "twice",
        },
        {
            "task_id": "HumanEval/1",
            "prompt": "def none():\r\n    ''' <b>&amp;</b> '''\n",
            "canonical_solution": "    return None\n",
            "test": "",
            "entry_point": "none",
        },
    ],
    "mbpp": [
        {
            "source_file": "Benchmark Questions Verification V2.ipynb",
            "task_id": 11,
            "prompt": "Write a python function to remove a {letter}.",
            "code": "def f(): ...",
            "test_imports": [],
            "test_list": ["assert f() is None"],
        },
        {
            "source_file": "x.ipynb",
            "task_id": 12,
            "prompt": "Write a function to sort a matrix.\n",
            "code": "def g(): ...",
            "test_imports": [],
            "test_list": [],
        },
    ],
    "livecodebench": [
        {
            "question_title": "A. Pairs",
            "question_content": "Count the pairs.\n\nInput\n\n{n}",
            "platform": "codeforces",
            "question_id": "1873_A",
            "contest_id": "1873",
            "contest_date": "2023-08-21T00:00:00",
            "starter_code": "",
            "difficulty": "easy",
            "public_test_cases": "[]",
            "private_test_cases": "…",
            "metadata": "{}",
        },
        {
            "question_title": "two-sums",
            "question_content": "Given nums, return both.",
            "platform": "leetcode",
            "question_id": "2777",
            "contest_id": "weekly",
            "contest_date": "2023-07-01T00:00:00",
            "starter_code": "class Solution:\n    def both(self, nums: List[int]) -> int:\n        ",
            "difficulty": "medium",
            "public_test_cases": "[]",
            "private_test_cases": "…",
            "metadata": "{}",
        },
    ],
    "swe_bench_lite": [
        {
            "repo": "astropy/astropy",
            "instance_id": "astropy__astropy-1",
            "base_commit": "0" * 40,
            "patch": "diff",
            "test_patch": "diff",
            "problem_statement": "Tables {break}\r\n### Steps\n1. `Table()`",
            "hints_text": "",
            "created_at": "2022-03-03T15:14:54Z",
            "version": "4.3",
            "FAIL_TO_PASS": "[]",
            "PASS_TO_PASS": "[]",
            "environment_setup_commit": "1" * 40,
        },
        {
            "repo": "django/django",
            "instance_id": "django__django-2",
            "base_commit": "0" * 40,
            "patch": "diff",
            "test_patch": "diff",
            "problem_statement": "Forms lose their order.",
            "hints_text": "None",
            "created_at": "2019-01-01T00:00:00Z",
            "version": "3.0",
            "FAIL_TO_PASS": "[]",
            "PASS_TO_PASS": "[]",
            "environment_setup_commit": "1" * 40,
        },
    ],
    "mt_bench": [
        {"prompt": ["Write a {poem}.", "Now shorter."], "prompt_id": 57287799, "category": "writing", "reference": []},
        {"prompt": ["What is 1 + 1?", "And twice that?"], "prompt_id": 2, "category": "math", "reference": ["2", "4"]},
    ],
    "alpaca": [
        {"instruction": "Give three tips.", "input": "", "output": "1. …", "text": "Below is …"},
        {"instruction": "Name the animal {}.", "input": "It barks.\n", "output": "A dog.", "text": "Below is …"},
    ],
    "spec_bench": [
        {"question_id": 81, "category": "roleplay", "turns": ["Be a {cat}.", "Now a dog."], "reference": ["…", "…"]},
        {"question_id": 241, "category": "summarization", "turns": ["Summarize: it rained."]},
    ],
    "speed_bench": [
        {
            "question_id": "q-1",
            "category": "coding",
            "sub_category": "python",
            "turns": ["Sort {this}.", "Faster."],
            "source": "own",
            "src_id": "1",
            "difficulty": "easy",
            "multiturn": True,
        },
        {
            "question_id": "q-2",
            "category": "rag",
            "sub_category": "",
            "turns": ["Who wrote it?"],
            "source": "own",
            "src_id": "2",
            "difficulty": "",
            "multiturn": False,
        },
    ],
}

FORMS = {  # sha256 of the two prompts' turns as JSON, made from the rows above by the published code (dflash, ddtree)
    "gsm8k": "f373cdd44f517ef1a550307e5eb914b236117c7df8d0e12ab60b3612f06978b0",
    "math500": "423d389e7ebada4a17f90cb0032bc2fd26afb7c0df8503c1fd2ac441331a5f12",
    "aime24": "8ff9a2105a565b9818f65c6d0b1c295ea062107fcb9ee88a66b9daed6741b31c",
    "aime25": "7b63eb30accd23a3d9e5060c480da8c878d22e684d97ad0990748306559f81d5",
    "alpaca": "4187eaad501677073d5dcb65169ce4e7ac39aade6f6709a0dbfd7d0ebcfdf0be",
    "mt_bench": "b4644b316869b5e481b99d502e142b6cbc0d9b9b33102474fb685eee8a865371",
    "humaneval": "dd50d54c8f2ec5537e14938cedbfa91b7e5bd1cb84edd5e55d436658b107fc96",
    "mbpp": "dde333b5a81dc4831e3ca40498fcdec07e5111d65782cbbeaecb5057711942bf",
    "swe_bench_lite": "09621b04066cc630f6590118234a9306fee9b3633c1e142c724328f4d40c9773",
    "livecodebench": "b757ecdbcf5297513796b767c6dccc75b8586a64b6e05f572c147a240c0979d0",
    "spec_bench": "24ef42fbc72560b3574e8d28b4436ad9b50a2a62e91c498c759553ce33347542",
    "speed_bench": "0989262a21bf7ff973676d1aa69b130535f71dfdbdf5e2dd3686006d2da09c8c",
}
