"""HST: the host does not feed the device."""
