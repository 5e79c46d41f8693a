"""Pipeline: how the encoder is cut in segments and executed."""
