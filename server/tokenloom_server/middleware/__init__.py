"""What every request passes before it reaches a route. Pure ASGI: nothing is buffered."""
