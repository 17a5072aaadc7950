"""The log: one decided entry after another, each by its own single-decree Paxos instance."""
