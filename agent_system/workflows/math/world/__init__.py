"""Whether answers are equal, and rows of mathematics."""
