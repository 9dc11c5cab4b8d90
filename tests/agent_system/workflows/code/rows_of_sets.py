"""One or two rows of each data set, in its own columns."""

import json
from typing import Any

APPS: dict[str, Any] = {
    "question": "Add two numbers.",
    "solutions": json.dumps(["print(0)", "import sys\nprint(sum(map(int, sys.stdin.read().split())))"]),
    "input_output": json.dumps({"inputs": ["1 2\n", ["4", "5"]], "outputs": ["3\n", ["9"]]}),
    "starter_code": "",
}
CODE_CONTESTS: dict[str, Any] = {
    "description": "Add two numbers.",
    "public_tests": {"input": ["1 1\n"], "output": ["2\n"]},
    "private_tests": {"input": ["2 3\n"], "output": ["5\n"]},
    "generated_tests": {"input": ["7 8\n"], "output": ["15\n"]},
    "solutions": {
        "language": [1, 3, 2],
        "solution": ["print 1", "a, b = map(int, input().split())\nprint(a + b)", "int main() {}"],
    },
}
LIVE_CODE_BENCH: dict[str, Any] = {
    "question_content": "Add two numbers.",
    "starter_code": "",
    "public_test_cases": json.dumps([{"input": "1 2", "output": "3", "testtype": "stdin"}]),
    "private_test_cases": "[]",
    "metadata": "{}",
}
HUMAN_EVAL: list[dict[str, Any]] = [
    {
        "task_id": "Mini/0",
        "prompt": 'def double(x: int) -> int:\n    """Return twice x.\n    >>> double(2)\n    4\n    """\n',
        "entry_point": "double",
        "canonical_solution": "    return x * 2\n",
        "test": "def check(candidate):\n    assert candidate(5) == 10\n    for i in range(3):\n        assert candidate(i) == 2 * i\n",
    },
    {
        "task_id": "Mini/1",
        "prompt": 'def root(x):\n    """Return a number whose square is x."""\n',
        "entry_point": "root",
        "canonical_solution": "    return x ** 0.5\n",
        "test": "def check(candidate):\n    assert abs(candidate(2) ** 2 - 2) < 1e-6\n    assert abs(candidate(9) ** 2 - 9) < 1e-6\n",
    },
    {
        "task_id": "Mini/2",
        "prompt": 'def keys(d):\n    """Return the keys, sorted, as a tuple; an empty set where there is none."""\n',
        "entry_point": "keys",
        "canonical_solution": "    return tuple(sorted(d)) if d else set()\n",
        "test": "def check(candidate):\n    assert candidate({'b': 1, 'a': 2}) == ('a', 'b')\n"
        "    assert candidate({2: 1}) == (2,)\n    assert candidate({}) == set()\n",
    },
    {
        "task_id": "Mini/3",
        "prompt": 'def wrong(x):\n    """Return x."""\n',
        "entry_point": "wrong",
        "canonical_solution": "    return x + 1\n",
        "test": "def check(candidate):\n    assert candidate(1) == 1\n",
    },
    {
        "task_id": "Mini/4",
        "prompt": 'def pair(x):\n    """Return the set of x and -x."""\n',
        "entry_point": "pair",
        "canonical_solution": "    return {x, -x}\n",
        "test": "def check(candidate):\n    assert candidate(1) == {1, -1}\n",
    },
    {
        "task_id": "Mini/5",
        "prompt": 'def call(f):\n    """Call f."""\n',
        "entry_point": "call",
        "canonical_solution": "    return f()\n",
        "test": "def check(candidate):\n    assert candidate(lambda: 1) == 1\n",
    },
]
MBPP: dict[str, Any] = {
    "text": "Write a function to find the elements that two tuples share.",
    "code": "def common(a, b):\n    return tuple(set(a) & set(b))",
    "test_list": [
        "assert set(common((3, 4, 5), (5, 4, 9))) == {4, 5}",
        "assert set(common((1,), (1,))) == {1}",
    ],
    "test_setup_code": "",
}
ROWS: dict[str, dict[str, Any]] = {
    "apps": APPS,
    "code_contests": CODE_CONTESTS,
    "live_code_bench": LIVE_CODE_BENCH,
    "human_eval": HUMAN_EVAL[0],
    "mbpp": MBPP,
}
