"""Memory and time of a training step before it is run."""
