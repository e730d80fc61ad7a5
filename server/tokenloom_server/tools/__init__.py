"""Calls of tools: how models write them, and how they are asked for and read."""
