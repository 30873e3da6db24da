"""A language model as a judge: what it is asked, how its verdict is read, who is called, and what is kept of it."""
