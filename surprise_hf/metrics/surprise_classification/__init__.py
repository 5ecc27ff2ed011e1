"""An `evaluate` module; the folder, as it is, is a Space."""
