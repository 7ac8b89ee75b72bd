"""A Flower app in the form of the quickstart, with a selector of flsel."""
