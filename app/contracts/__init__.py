"""Messages shared between the service and the workers. Imports nothing else of ours."""
