"""Requests whose bodies are changed on their way."""
