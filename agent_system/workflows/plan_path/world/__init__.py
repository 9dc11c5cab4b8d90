"""Maps: their rules, what is shown of them, and how they are made."""
