"""The API process: the OpenAI server in front of the core. Imports neither the core nor torch."""
