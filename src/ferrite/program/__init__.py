"""The model as a flat list of operations, its weights, and the native runner that executes a step."""
