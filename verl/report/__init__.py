"""What a run folder says: the report, its pages, and alarms."""
