"""Kernels: inner loops compiled by numba, each beside a plain numpy twin that specifies it."""
