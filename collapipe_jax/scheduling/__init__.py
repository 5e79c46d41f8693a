"""Scheduling: decisions, virtual queues and the policies that decide."""
