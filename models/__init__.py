"""The model zoo: one folder a model, shipped as package data `argus_cli.models`."""
