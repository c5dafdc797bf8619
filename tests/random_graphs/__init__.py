"""Random models of operators that have a gradient, for property-based tests."""
