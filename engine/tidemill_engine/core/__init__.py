"""The core process: schedule, build batch, run, sample, update, again. Started by the API process."""
