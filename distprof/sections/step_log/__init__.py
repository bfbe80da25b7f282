"""Steps as logged by the job itself."""
