"""What a trained network says of images it has not seen."""
