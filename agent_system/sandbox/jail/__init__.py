"""The inside of the local sandbox: processes that hold programs. Standard library only; nothing here is imported by the trainer's process.

`main.py` is started in a clean interpreter as the package `jail`, so imports inside are relative. The chain of processes, each the parent
of the next: the watcher (`main.py`: sees the host, measures), the warden (`warden.py`: builds the view), an init for every job
(`init.py`, `runner.py`: run the tests one after the other, judge nothing), the program (`program.py`).
"""
