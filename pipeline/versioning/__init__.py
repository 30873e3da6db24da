"""Runs as Git branches whose iterations are commits, and what DVC keeps of each: git and dvc, called as programs."""
