"""Linear layers in small integers, with a kernel of our own that is compiled on the machine it runs on."""
