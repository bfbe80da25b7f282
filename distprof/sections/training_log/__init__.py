"""What a training program printed about its iterations."""
