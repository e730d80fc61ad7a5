"""Tests of calls of tools."""
