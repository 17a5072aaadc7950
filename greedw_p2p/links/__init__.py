"""Links: what they cost, estimated locally, published as integers, merged in any order."""
