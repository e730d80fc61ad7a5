"""The front of tokenloom: settings, command line, and the HTTP dialects."""
