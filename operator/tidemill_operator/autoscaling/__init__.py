"""How many replicas a service needs, and why: values in, a decision out. Pure: no I/O, clock or chance."""
