"""What everything else stands on: types, randomness, weights, options, errors, files."""
