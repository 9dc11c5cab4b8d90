"""Executed replay of decisions: what a reply was worth, measured by playing its episode again with
other replies in its place.
"""
