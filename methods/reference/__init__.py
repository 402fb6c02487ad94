"""The built-in implementation, readable as an appendix: tree, sampling, target, drafter, the round."""
