"""Methods and engines: how tokens are produced."""
