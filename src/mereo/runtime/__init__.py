"""What everything that runs for a while needs: devices, free memory, progress, and numbers as text."""
