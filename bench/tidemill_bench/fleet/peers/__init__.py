"""Other autoscalers, written from their public definitions, each with the knobs that its users have.

Every one sees the same `FleetLoad` as ours at each scrape and takes from it what it reads in real life.
What each leaves out is said in its own module.
"""
