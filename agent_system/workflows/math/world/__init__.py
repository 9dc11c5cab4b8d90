"""Grading of mathematical answers, and rows of mathematics data sets."""
