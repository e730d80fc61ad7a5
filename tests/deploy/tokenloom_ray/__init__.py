"""Tests of the application for Ray Serve; tests/deploy/test_ray.py runs it."""
