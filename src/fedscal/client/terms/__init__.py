"""What a client minimises: terms, and the equations that they are made of."""
