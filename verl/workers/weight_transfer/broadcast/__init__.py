"""Parts of the transfer by broadcast (`collective.py`): connections, process groups, sender and
receiver.
"""
