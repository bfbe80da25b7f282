"""What a report says, subject by subject: results, how they are measured, shown and judged."""
