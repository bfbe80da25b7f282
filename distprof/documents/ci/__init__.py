"""Results in the formats that CI services read: annotations, code quality, SARIF, JUnit."""
