"""A zoo of models as researchers write them: parts by kind, a plain loop to train them, and a comparison."""
