"""The command line: one file for each command, and all parsing and printing.

main       looks up the command, and imports its file only then
ending     one place that turns errors into a sentence and an exit code
parsing    how every command's arguments and help look
terminal   tables and lines for the terminal
"""
