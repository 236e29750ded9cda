"""What the engines and gateways report, read, understood and kept: everything around the scaling decision.

The decision itself is `tidemill_operator.autoscaling`.
"""
