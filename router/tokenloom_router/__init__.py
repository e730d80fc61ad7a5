"""Validates requests, submits them to the engine process and streams its outputs."""
