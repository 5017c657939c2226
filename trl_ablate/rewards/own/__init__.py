"""Rewards that a recipe names itself: functions, reward models, and this package's parts."""
