"""Other people's ways to match points between photos, on the same photos as ours and with the same code behind them.

Nothing is imported here: the peers' own environment imports `protocol`, and would not find what the others need.
"""
