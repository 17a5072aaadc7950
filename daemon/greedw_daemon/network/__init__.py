"""The network: one listening port, a control connection per peer, content by digest."""
