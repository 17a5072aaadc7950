"""Update rules: from a state and a mean gradient to the next state, in the same bits everywhere."""
