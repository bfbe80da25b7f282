"""Pipeline schedules: bubble, stages and what would shorten them."""
