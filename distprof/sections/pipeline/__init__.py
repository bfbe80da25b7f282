"""Pipeline schedules: bubble, stages and faster configurations."""
