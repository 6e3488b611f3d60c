"""The demo and the loopback stack: part of the checkout, not of the wheel."""
