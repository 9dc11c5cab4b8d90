"""Problems and their tests: parsing, runs in the sandbox, judging, and preparation of public data
sets.
"""
