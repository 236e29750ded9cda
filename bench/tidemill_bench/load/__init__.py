"""An OpenAI load client: workloads, closed and open loop, records, reports."""
