"""What several papers share."""
