"""The gateway: finds services and ready replicas through the API server and routes requests to them."""
