"""Buckets, chunks, and the state machine of one attempt's all-reduce."""
