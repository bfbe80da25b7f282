"""Cost models: functions of scalars and arrays, without I/O."""
