"""What to do with an adapted model: open it, ask it, hand it on."""
