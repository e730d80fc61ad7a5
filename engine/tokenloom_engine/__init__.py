"""The engine: forwards over packed batches, with a constraint engine for each sequence."""
