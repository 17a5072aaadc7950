"""Plans: trees, shares and sizes, all pure functions of a view."""
