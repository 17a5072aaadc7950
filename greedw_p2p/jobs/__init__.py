"""Jobs: what is iterated, in which units, and how partial results are made and applied."""
