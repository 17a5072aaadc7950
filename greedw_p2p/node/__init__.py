"""The node: everything a greedw daemon decides, as one state machine without I/O."""
