"""The network and its decisions: channel, cost, control, solver, policies, rounds."""
