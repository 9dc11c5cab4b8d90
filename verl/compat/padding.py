"""Padding at dispatch: how a dispatch function reports it."""

PADDING_SIZE_KEY = "_padding_size_key_x123d"
"""Keyword under which a dispatch function reports how many rows it appended."""

_padding_size_key = PADDING_SIZE_KEY  # verl's name
