"""What an agent changed in its container, compared with the image, and which of it decides how tests run."""
