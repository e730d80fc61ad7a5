"""The HTTP dialects: what clients send and what they get back."""
