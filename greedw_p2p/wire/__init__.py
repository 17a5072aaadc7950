"""The wire: framing, messages, and the codec between them. Bytes in, values out, no sockets."""
