"""What runs inside a sandbox. It imports the standard library alone; the project is not there."""
