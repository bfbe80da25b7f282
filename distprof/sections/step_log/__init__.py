"""Steps as the job itself logged them."""
