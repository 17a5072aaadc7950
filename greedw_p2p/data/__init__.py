"""Data sets: readers of the field's file formats, and a small embedded set."""
