"""Memory and cost of a training step on a device that need not be there, from the compiled programs."""
