"""`unembed index ...`: build, status, triggers, search, SQL, verify, export."""
