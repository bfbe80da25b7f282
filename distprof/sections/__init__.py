"""The sections of a report, by subject: results, and how they are measured, shown and judged."""
