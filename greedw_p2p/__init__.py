"""greedw: train one model on unequal machines, with no server and no special node."""
