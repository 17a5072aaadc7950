"""Jobs on this node: each with its worker and its part in the attempts of the log."""
