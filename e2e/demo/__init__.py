"""The main job, end to end: a prompt prefix applied, warmed, pinned, routed to and measured."""
