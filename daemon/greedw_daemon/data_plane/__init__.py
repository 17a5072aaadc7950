"""The data plane: bulk connections along tree edges, and the all-reduce that runs over them."""
