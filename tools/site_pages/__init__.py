"""What makes pages of the documentation out of the code, a file for each kind of page."""
