"""Load clients and measurements, run by command and never by a test."""
