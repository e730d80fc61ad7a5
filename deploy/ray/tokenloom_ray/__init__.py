"""tokenloom as an application of Ray Serve: replicas of the engine behind one ingress."""
