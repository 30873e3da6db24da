"""The verifiers: a module each, entered in `verification.make_verifiers`, and what they are made of."""
