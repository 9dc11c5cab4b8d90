"""Processes of the local sandbox that isolate programs. Standard library only.

`main.py` is started in a clean interpreter as the package `jail`, so imports inside are relative.
The chain of processes, each the parent of the next: the watcher (`main.py`: measures memory and
disk from outside), the warden (`warden.py`: builds the file system view), an init per job
(`init.py`, `runner.py`: run the tests one after the other, without grading them), the program
(`program.py`).
"""
