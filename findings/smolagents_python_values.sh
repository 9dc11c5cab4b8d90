#!/usr/bin/env bash
# smolagents 1.26.0: `LocalPythonExecutor`, which runs the code of a CodeAgent, gives other values than Python for valid programs, without
# an error. What a model learnt about Python then earns wrong observations:
#
#   - `return` and `break` inside `try` are caught by `except Exception` (and by a bare `except`), so that the loop goes on
#   - the `else` of `for` and `while` is not run
#   - a function without `return` returns the value of its last statement
#   - defaults of parameters are evaluated at each call: a list does not keep what was added to it
#   - decorators of functions are not applied, and `@property` is not either: the attribute is the method
#   - an argument by keyword behind `*rest` is also passed in `**more`, and the first arguments stand in `*rest` again
#   - closures in a comprehension keep the value of their round
#
# Output of the last part of this script:
#   return in try: Python 1, smolagents 9
#   break in try: Python [0], smolagents [0, 'caught', 1, 2]
#   else of for: Python ['else'], smolagents []
#   else of while: Python ['else'], smolagents []
#   no return: Python None, smolagents 5
#   default list: Python 2, smolagents 1
#   default of its time: Python 1, smolagents 2
#   decorator: Python 2, smolagents 1
#   property: Python True, smolagents False
#   rest of the arguments: Python (1, (2, 4), 5, {'e': 6}), smolagents (1, (1, 2, 4), 5, {'c': 5, 'e': 6})
#   closures: Python [2, 2, 2], smolagents [0, 1, 2]
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check smolagents==1.26.0
"$folder/venv/bin/python" - <<'PYTHON'
import sys
import textwrap

from smolagents.local_python_executor import LocalPythonExecutor

PROGRAMS = {
    "return in try": (
        """
        def first_odd(numbers):
            for number in numbers:
                try:
                    if number % 2:
                        return number
                except Exception:
                    pass
            return 9
        result = first_odd([0, 1, 2])
        """, 1, 9),
    "break in try": (
        """
        result = []
        for number in range(3):
            try:
                if number == 1:
                    break
            except Exception:
                result.append("caught")
            result.append(number)
        """, [0], [0, "caught", 1, 2]),
    "else of for": (
        """
        result = []
        for number in range(3):
            if number == 5:
                break
        else:
            result.append("else")
        """, ["else"], []),
    "else of while": (
        """
        result = []
        number = 0
        while number < 3:
            number += 1
        else:
            result.append("else")
        """, ["else"], []),
    "no return": (
        """
        def assign():
            number = 5
        result = assign()
        """, None, 5),
    "default list": (
        """
        def count(seen=[]):
            seen.append(1)
            return len(seen)
        count()
        result = count()
        """, 2, 1),
    "default of its time": (
        """
        number = 1
        def default(value=number):
            return value
        number = 2
        result = default()
        """, 1, 2),
    "decorator": (
        """
        def plus_one(function):
            def outer(x):
                return function(x) + 1
            return outer
        @plus_one
        def same(x):
            return x
        result = same(1)
        """, 2, 1),
    "property": (
        """
        class Square:
            @property
            def area(self):
                return 4
        result = Square().area == 4
        """, True, False),
    "rest of the arguments": (
        """
        def all_of(a, *rest, c=3, **more):
            return a, rest, c, more
        result = all_of(1, 2, 4, c=5, e=6)
        """, (1, (2, 4), 5, {"e": 6}), (1, (1, 2, 4), 5, {"c": 5, "e": 6})),
    "closures": (
        """
        functions = [lambda: number for number in range(3)]
        result = [function() for function in functions]
        """, [2, 2, 2], [0, 1, 2]),
}
as_described = []
for name, (program, right, seen) in PROGRAMS.items():
    program = textwrap.dedent(program)
    names = {}
    exec(program, names)
    executor = LocalPythonExecutor(additional_authorized_imports=[])
    executor.send_tools({})
    value = executor(f"{program}\nresult").output
    print(f"{name}: Python {names['result']}, smolagents {value}")
    as_described.append(names["result"] == right and value == seen)
sys.exit(0 if all(as_described) else 1)
PYTHON
